// The kernels for x86-64 with AVX2, FMA and F16C.
#if defined(__x86_64__)

#include "level_of.hpp"

namespace pilotlight {

const Level level_avx2 = level_of("avx2");

}  // namespace pilotlight

#endif
