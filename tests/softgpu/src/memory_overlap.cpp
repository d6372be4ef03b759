// Finds overlapping lanes; where there are none, as nearly always, one pass or two tell. See the header.
#include "memory_overlap.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "random.hpp"

namespace soft {
namespace {

// Whether all addresses are multiples of `bytes`, a power of two, and no two are the same: so none overlap.
bool all_different(uint32_t mask, const uint64_t* address, uint32_t bytes) {
  constexpr int kSlots = 64;
  uint64_t seen[kSlots], filled = 0;
  if (!std::has_single_bit(bytes)) return false;
  for (uint32_t left = mask; left; left &= left - 1) {
    const uint64_t at = address[std::countr_zero(left)];
    if (at & (bytes - 1)) return false;
    auto slot = static_cast<uint32_t>(at / bytes * kGolden >> 58);
    for (; filled >> slot & 1; slot = (slot + 1) % kSlots) {
      if (seen[slot] == at) return false;
    }
    seen[slot] = at;
    filled |= uint64_t{1} << slot;
  }
  return true;
}
}  // namespace

uint32_t overlapping_lanes(uint32_t mask, const uint64_t* address, uint32_t bytes, const uint8_t* from,
                           uint32_t& differing) {
  differing = 0;
  bool ascending = true;
  uint64_t previous_end = 0;
  for (uint32_t left = mask; left && ascending; left &= left - 1) {
    const uint64_t begin = address[std::countr_zero(left)];
    ascending = begin >= previous_end;
    previous_end = begin + bytes;
  }
  if (ascending || all_different(mask, address, bytes)) return 0;
  uint32_t overlapping = 0;
  for (uint32_t left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    for (uint32_t earlier = mask & ((1u << lane) - 1); earlier; earlier &= earlier - 1) {
      const int other = std::countr_zero(earlier);
      const uint64_t low = std::max(address[lane], address[other]);
      const uint64_t high = std::min(address[lane], address[other]) + bytes;
      if (low >= high) continue;
      overlapping |= 1u << lane;
      const uint8_t* mine = from + uint64_t(lane) * bytes + (low - address[lane]);
      const uint8_t* theirs = from + uint64_t(other) * bytes + (low - address[other]);
      if (std::memcmp(mine, theirs, high - low) != 0) differing |= 1u << lane;
    }
  }
  return overlapping;
}

}  // namespace soft
