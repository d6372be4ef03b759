// The kernels for x86-64 with AVX-512 F, BW, VL and DQ.
#if defined(__x86_64__)

#include "level_of.hpp"

namespace pilotlight {

const Level level_avx512 = level_of("avx512");

}  // namespace pilotlight

#endif
