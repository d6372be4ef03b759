// What this CPU and its system have of the instructions that levels need.
// Apart from the choice between levels, and not by __builtin_cpu_supports: zig's runtime library leaves that empty.
#pragma once

namespace pilotlight {

struct Features {
    bool avx2;  // and FMA and F16C
    bool avx512;  // F, BW, VL and DQ
    bool avx512_bf16;  // and VNNI

    static Features of_this_cpu();
};

}  // namespace pilotlight
