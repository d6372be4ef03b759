// Reads CUDA_VISIBLE_DEVICES. See the header.
#include "visible_devices.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <string_view>

#include "config.hpp"
#include "findings.hpp"
#include "random.hpp"

namespace soft {
namespace {

enum class Kind { Index, Card, Slice };

Kind kind_of(std::string_view entry) {
  return entry.starts_with("GPU-") ? Kind::Card : entry.starts_with("MIG-") ? Kind::Slice : Kind::Index;
}

UuidBytes uuid_from(uint64_t number) {
  UuidBytes bytes;
  for (size_t half = 0; half < 2; half++) {
    const uint64_t word = mix(2 * number + half);
    std::memcpy(&bytes[8 * half], &word, sizeof word);
  }
  return bytes;
}

// As strtol reads numbers, so does the driver: "1st" is 1, and what does not begin with digits is nothing.
std::optional<int> card_by_index(const std::string& entry) {
  char* end = nullptr;
  const long index = std::strtol(entry.c_str(), &end, 10);
  if (end == entry.c_str() || index < 0 || index >= config().devices) return std::nullopt;
  return static_cast<int>(index);
}

std::optional<int> card_by_uuid(const std::string& entry, Kind kind) {
  if (entry.starts_with("MIG-GPU-")) unsupported("CUDA_VISIBLE_DEVICES=MIG-GPU-..., as drivers before 470 name slices");
  if (kind == Kind::Slice && !config().mig) return std::nullopt;
  std::optional<int> found;
  for (int card = 0; card < config().devices; card++) {
    const std::string whole =
        kind == Kind::Slice ? uuid_text("MIG-", slice_uuid(card)) : uuid_text("GPU-", card_uuid(card));
    if (!whole.starts_with(entry)) continue;
    if (found) return std::nullopt;  // it could be either
    found = card;
  }
  return found;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> entries;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

// The first entry says of which kind they are. A card named twice leaves none at all: this the guide does not say, but
// clients that read the variable themselves do it (torch.cuda, _parse_visible_devices).
std::vector<int> named_cards(const std::string& list) {
  std::vector<int> cards;
  const std::vector<std::string> entries = split(list);
  const Kind kind = kind_of(entries.front());
  for (const std::string& entry : entries) {
    if (kind_of(entry) != kind) break;
    const auto card = kind == Kind::Index ? card_by_index(entry) : card_by_uuid(entry, kind);
    if (!card) break;
    if (std::find(cards.begin(), cards.end(), *card) != cards.end()) return {};
    cards.push_back(*card);
  }
  return cards;
}
}  // namespace

UuidBytes card_uuid(int card) { return uuid_from(2 * static_cast<uint64_t>(card)); }
UuidBytes slice_uuid(int card) { return uuid_from(2 * static_cast<uint64_t>(card) + 1); }

std::string uuid_text(const char* prefix, const UuidBytes& uuid) {
  std::string text = prefix;
  for (size_t index = 0; index < uuid.size(); index++) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", uuid[index]);
    if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    text += digits;
  }
  return text;
}

std::vector<int> visible_cards() {
  std::vector<int> cards(static_cast<size_t>(config().devices));
  std::iota(cards.begin(), cards.end(), 0);
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) cards = named_cards(list);
  if (config().mig && cards.size() > 1) cards.resize(1);
  return cards;
}
}  // namespace soft
