// The mixing function of app/device/random.py, of which every random number is made.
// In an anonymous namespace, like all that is compiled once for each level.
#pragma once

#include <stdint.h>

namespace pilotlight {
namespace {

constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

// nth(state, n): output number n of SplitMix64 started at `state`.
[[gnu::always_inline]] inline uint64_t nth(uint64_t state, uint64_t n) {
    uint64_t z = state + (n + 1) * kGamma;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

}  // namespace
}  // namespace pilotlight
