// Numbers that a seed decides: one mixing function, so that whatever a card may choose comes from the same source.
#pragma once
#include <cstdint>

namespace soft {
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;

inline uint64_t mix(uint64_t x) {  // a step of splitmix64
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline uint64_t next_random(uint64_t& state) {
  const uint64_t value = mix(state);
  state += kGolden;
  return value;
}
}  // namespace soft
