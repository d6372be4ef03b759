// Finds overlapping lanes; stores whose addresses ascend, nearly all, cost one pass. See the header.
#include "memory_overlap.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace soft {

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
  if (ascending) return 0;
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
