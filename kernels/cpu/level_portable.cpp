// The kernels for any CPU: 128-bit vectors.
#include "level_of.hpp"

namespace pilotlight {

const Level level_portable = level_of("portable");

}  // namespace pilotlight
