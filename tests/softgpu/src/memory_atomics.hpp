// The arithmetic of atomics, exact by type. Where they happen and what they order is the business of global and
// shared.
#pragma once
#include "memory.hpp"

namespace soft {
uint32_t width_of(AtomicType type);
bool is_float(AtomicType type);
// at = op(at, a, b); old takes what was there (null: not asked for). Subnormal fp32 sums are flushed in global memory
// only.
void apply_atomic(AtomicOp op, AtomicType type, uint8_t* at, const uint8_t* a, const uint8_t* b, uint8_t* old,
                  bool flush_subnormals);
}  // namespace soft
