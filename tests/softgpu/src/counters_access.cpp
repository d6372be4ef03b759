// Counts the sectors and wavefronts of one access. See the header for the model.
#include "counters_access.hpp"

#include <algorithm>
#include <bit>

namespace soft {
namespace {

constexpr uint32_t kSectorShift = 5, kBanks = 32, kBankBytes = 4;

// Distinct values among up to 32, told apart by a 64-bit sketch first.
class Distinct {
 public:
  void add(uint64_t value) {
    const uint64_t bit = 1ull << (value & 63);
    if (seen_ & bit)
      for (uint32_t i = count_; i-- > 0;)
        if (values_[i] == value) return;
    seen_ |= bit;
    values_[count_++] = value;
  }
  uint32_t count() const { return count_; }

 private:
  uint64_t seen_ = 0;
  uint64_t values_[kLanes];
  uint32_t count_ = 0;
};

}  // namespace

AccessCount count_sectors(uint32_t mask, const uint64_t* address, uint32_t bytes) {
  const uint64_t asked = uint64_t(std::popcount(mask)) * bytes;
  Distinct sectors;
  uint64_t last = ~0ull;
  for (; mask; mask &= mask - 1) {
    // Aligned accesses of at most 16 bytes never straddle sectors.
    const uint64_t sector = address[std::countr_zero(mask)] >> kSectorShift;
    if (sector != last) sectors.add(sector);
    last = sector;
  }
  const uint64_t count = sectors.count();
  return {1, asked, count, std::min(count, (asked + (1u << kSectorShift) - 1) >> kSectorShift)};
}

AccessCount count_wavefronts(uint32_t mask, const uint64_t* offset, uint32_t bytes) {
  const uint32_t width = std::max(bytes, kBankBytes);
  const uint32_t shift = uint32_t(std::countr_zero(width)), groups = kBanks * kBankBytes / width;
  AccessCount count{1, uint64_t(std::popcount(mask)) * bytes, 0, 0};
  const uint32_t phase = groups >= 32 ? ~0u : (1u << groups) - 1;
  for (uint32_t first = 0; first < kLanes; first += groups) {
    uint32_t lanes = mask >> first & phase;
    if (!lanes) continue;
    uint64_t chunks[kLanes];
    uint8_t in_group[kLanes] = {};
    uint32_t distinct = 0, fullest = 0, used = 0;
    for (; lanes; lanes &= lanes - 1) {
      const uint64_t chunk = offset[first + uint32_t(std::countr_zero(lanes))] >> shift;
      const uint32_t group = uint32_t(chunk % groups);
      bool again = false;
      if (used >> group & 1)
        for (uint32_t i = 0; i < distinct && !again; ++i) again = chunks[i] == chunk;
      if (again) continue;
      used |= 1u << group;
      chunks[distinct++] = chunk;
      fullest = std::max<uint32_t>(fullest, ++in_group[group]);
    }
    count.sectors += fullest;
    count.ideal += (distinct + groups - 1) / groups;
  }
  return count;
}

AccessCount count_local(uint32_t mask, const uint64_t* offset, uint32_t bytes) {
  Distinct offsets;
  const uint32_t lanes = uint32_t(std::popcount(mask));
  for (uint32_t left = mask; left; left &= left - 1) offsets.add(offset[std::countr_zero(left)]);
  const uint64_t ideal = (uint64_t(lanes) * bytes + 31) / 32;
  // Lanes that index differently touch different rows of the interleaved words.
  return {1, uint64_t(lanes) * bytes, std::max<uint64_t>(ideal, offsets.count()), ideal};
}

}  // namespace soft
