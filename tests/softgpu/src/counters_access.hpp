// What one warp-wide access costs on a card: 32-byte sectors of global memory, wavefronts of shared memory.
//
// Global: the distinct sectors among all 32 lanes, whatever the width; the four quarter-warps that a 16-byte access
// is carried out as are not told apart, since they meet in L1. Ideal: sectors that the bytes asked for would fill.
// Shared: 32 banks of 4 bytes; an access of 8 bytes a lane goes by half-warps, one of 16 bytes (and each matrix of
// ldmatrix) by groups of 8 lanes. A group takes as many wavefronts as distinct words fall into its fullest bank.
// Ideal: the wavefronts if its distinct words were spread over all banks.
#pragma once
#include "counters.hpp"
#include "memory.hpp"

namespace soft {
AccessCount count_sectors(uint32_t mask, const uint64_t* address, uint32_t bytes);
AccessCount count_wavefronts(uint32_t mask, const uint64_t* offset, uint32_t bytes);
AccessCount count_local(uint32_t mask, const uint64_t* offset, uint32_t bytes);  // a warp's lanes' words lie together
inline void operator+=(AccessCount& to, const AccessCount& from) {
  to.requests += from.requests;
  to.bytes += from.bytes;
  to.sectors += from.sectors;
  to.ideal += from.ideal;
}
}  // namespace soft
