// Keeps findings: one for each rule and place, however often it happens there.
#include "findings.hpp"

#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>

#include "findings_json.hpp"

namespace soft {
namespace {

struct Entry {
  std::string rule, what, where;
  uint64_t count = 1;
  // Of those at one instruction, the first in this order speaks: the report must not depend on how threads ran.
  std::tuple<uint64_t, uint32_t, int> rank;
};

using Key = std::tuple<std::string, const Instruction*, std::string>;

std::mutex mutex;
std::map<Key, size_t> index;
std::vector<Entry> entries;

void record(Key key, Entry entry) {
  const auto [at, added] = index.try_emplace(std::move(key), entries.size());
  if (added) {
    entries.push_back(std::move(entry));
    return;
  }
  Entry& kept = entries[at->second];
  const uint64_t count = kept.count + 1;
  if (entry.rank < kept.rank) kept = std::move(entry);
  kept.count = count;
}

}  // namespace

void finding(const char* rule, const std::string& what, const std::string& where) {
  const std::lock_guard lock(mutex);
  record({rule, nullptr, where}, {rule, what, where, 1, {}});
}

void finding(const char* rule, const std::string& what, const Site& site, int lane) {
  const uint64_t block = uint64_t(site.block[2]) << 48 | uint64_t(site.block[1]) << 32 | site.block[0];
  const std::tuple rank{block, site.warp, lane};
  const std::lock_guard lock(mutex);
  // Describing costs an allocation or two, so what is only counted is not described.
  const Key key{rule, site.instruction, site.instruction ? "" : site.kernel};
  if (const auto at = index.find(key); at != index.end() && entries[at->second].rank <= rank) {
    ++entries[at->second].count;
    return;
  }
  record(key, {rule, what, describe(site, lane), 1, rank});
}

void fault(int result, const char* rule, const std::string& what, const Site& site, int lane) {
  finding(rule, what, site, lane);
  throw Fault{result, what};
}

void unsupported(const std::string& what) {
  finding("unsupported", what, "");
  throw Unsupported{what};
}

void clear_findings() {
  const std::lock_guard lock(mutex);
  index.clear();
  entries.clear();
}

std::string findings_json() {
  const std::lock_guard lock(mutex);
  std::string out = "[";
  for (const Entry& entry : entries) {
    if (out.size() > 1) out += ",\n ";
    out += "{\"rule\": " + json_string(entry.rule) + ", \"what\": " + json_string(entry.what) +
           ", \"where\": " + json_string(entry.where) + ", \"count\": " + std::to_string(entry.count) + "}";
  }
  return out + "]";
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      (out += '\\') += letter;
    } else if (code < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", code);
      out += escape;
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

}  // namespace soft
