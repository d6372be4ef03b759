// What a level of CPU provides: its kernels, as a table that is chosen from when a pool is opened.
// Apart from the kernels so that what calls them is compiled for any CPU.
#pragma once

#include "team.hpp"

namespace pilotlight {

// Passes over a row of logits: what sampling needs of the vocabulary's size. The rest of it is in sample.cpp.
struct Passes {
    // The largest value; a NaN where there is one.
    float (*largest)(const float* values, int count);
    // The lowest index of `value`, which is there.
    int (*index_of)(const float* values, int count, float value);
    // out[i]: the largest of the values 64 * i to 64 * i + 63; NaNs are passed over.
    void (*maxima)(const float* values, int count, float* out);
    // Sum of exp((value - largest) / temperature): fp32 terms, summed in double but for four at a time.
    double (*mass)(const float* values, int count, float largest, float temperature);
    // Ascending indices of the values that are at least `least`; how many.
    int (*at_least)(const float* values, int count, float least, int32_t* out);
    // Those that are, or whose random bits are at most `limit`. Bits: device/random.py, for the stream of a position.
    int (*contenders)(const float* values, int count, float least, uint64_t stream, uint64_t limit, int32_t* out);
};

struct Level {
    const char* name;
    void (*embed)(Team&, const PlEmbed&);
    void (*norm)(Team&, const PlNorm&);
    void (*linear)(Team&, const PlLinear&);
    void (*gated_linear)(Team&, const PlGatedLinear&);
    void (*rope_and_cache)(Team&, const PlRopeAndCache&);
    void (*attention)(Team&, const PlAttention&);
    void (*gather)(Team&, const PlGather&);
    Passes passes;
};

extern const Level level_portable;
#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
extern const Level level_avx512_bf16;
#endif

}  // namespace pilotlight
