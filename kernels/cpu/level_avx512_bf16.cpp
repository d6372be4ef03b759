// The kernels for x86-64 with AVX-512 and its BF16 and VNNI.
#if defined(__x86_64__)

#include "level_of.hpp"

namespace pilotlight {

const Level level_avx512_bf16 = level_of("avx512_bf16");

}  // namespace pilotlight

#endif
