// Sampling and scoring: what app/device/sampling.py defines, for a whole batch at once.
#pragma once

#include "level.hpp"

namespace pilotlight {

void sample(Team& team, const Passes& passes, const PlSample& op);
void score(Team& team, const Passes& passes, const PlScore& op);

int64_t sample_bytes(int threads, int vocab);

}  // namespace pilotlight
