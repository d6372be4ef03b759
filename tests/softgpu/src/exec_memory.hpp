// What the decoders of memory instructions share.
#pragma once
#include "decode.hpp"
#include "warp.hpp"

namespace soft {
// base + offset of each lane, a 4-byte base taken as unsigned; into `out`, which it returns.
const uint64_t* addresses(const Warp& warp, int32_t reg, int base_width, int64_t offset, uint64_t* out);
// The address operand; a 32-bit register holds addresses of the small spaces only.
void address_in(Decoder& d, Space space);
Space take_space(Decoder& d);  // Generic where none is named
Scope want_scope(Decoder& d);
bool take_cache_hints(Decoder& d, Space space);
void skip_policy(Decoder& d, bool policy);  // the operand of .L2::cache_hint
}  // namespace soft
