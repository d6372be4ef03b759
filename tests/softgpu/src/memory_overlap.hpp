// Lanes of one store that write the same bytes. Shared by global and shared memory.
#pragma once
#include <cstdint>

namespace soft {
// The lanes that write a byte which an earlier lane of the same store writes as well; `differing`: with another
// value.
uint32_t overlapping_lanes(uint32_t mask, const uint64_t* address, uint32_t bytes, const uint8_t* from,
                           uint32_t& differing);
}  // namespace soft
