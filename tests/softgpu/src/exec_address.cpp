// Addresses: what every instruction on memory decodes alike, and conversions between state spaces. PTX manual 9.7.9.
#include "exec.hpp"
#include "exec_memory.hpp"

namespace soft {
const uint64_t* addresses(const Warp& warp, int32_t reg, int base_width, int64_t offset, uint64_t* out) {
  if (base_width == 8) {
    const uint64_t* base = warp.reg<uint64_t>(reg);
    SOFT_LANES
      out[lane] = base[lane] + uint64_t(offset);
  } else {
    const uint32_t* base = warp.reg<uint32_t>(reg);
    SOFT_LANES
      out[lane] = uint64_t(base[lane]) + uint64_t(offset);
  }
  return out;
}

// A 32-bit register holds addresses of the small spaces only.
void address_in(Decoder& d, Space space) {
  d.address();
  if (d.ins.d == 4 && (space == Space::Generic || space == Space::Global))
    d.refuse("a 32-bit address of 64-bit memory");
}

Space take_space(Decoder& d) {
  if (d.take("global")) return Space::Global;
  if (d.take("shared")) return Space::Shared;
  if (d.modifier() == "shared::cta") {
    d.need(78, 30);
    d.take("shared::cta");
    return Space::Shared;
  }
  if (d.take("local")) return Space::Local;
  if (d.take("const")) return Space::Const;
  if (d.take("param")) return Space::Param;
  if (d.take("param::entry")) {
    d.need(83, 0);
    return Space::Param;
  }
  return Space::Generic;
}

Scope want_scope(Decoder& d) {
  switch (d.want_one_of({"cta", "gpu", "sys"})) {
    case 0: return Scope::Cta;
    case 1: return Scope::Gpu;
    default: return Scope::Sys;
  }
}

// Hints change no value, so they are checked and dropped. True where a cache-policy operand follows.
bool take_cache_hints(Decoder& d, Space space) {
  const bool global = space == Space::Global || space == Space::Generic;
  for (const std::string_view level : {"L1", "L2"}) {
    const std::string prefix = std::string(level) + "::";
    for (const std::string_view priority :
         {"evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"}) {
      if (level == "L2" && (priority == "evict_unchanged" || priority == "no_allocate")) continue;
      if (!d.take(prefix + std::string(priority))) continue;
      d.need(level == "L2" ? 88 : 74, 70);
      if (!global) d.refuse("an eviction priority outside global memory");
    }
  }
  bool policy = false;
  if (d.take("L2::cache_hint")) {
    d.need(74, 80);
    if (!global) d.refuse("a cache hint outside global memory");
    policy = true;
  }
  const int prefetch = d.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  if (prefetch >= 0) {
    d.need(74, prefetch == 2 ? 80 : 75);
    if (!global) d.refuse("a prefetch size outside global memory");
  }
  return policy;
}

void skip_policy(Decoder& d, bool policy) {
  if (policy) d.in(Type::B64);
}

namespace {
void add_base(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t* a = warp.reg<uint64_t>(i.r[1]);
  for_lanes(warp.reg<uint64_t>(i.r[0]), mask, [&](int lane) { return a[lane] + uint64_t(i.immediate); });
}

void cvta(Decoder& d) {
  const bool to = d.take("to");
  const Space space = take_space(d);
  if (space == Space::Generic || space == Space::Param) d.not_built("this address conversion");
  if (width_of(d.want_type({Type::U32, Type::U64})) != 8) d.refuse("generic addresses have 64 bits");
  const int64_t window = space == Space::Shared ? kSharedWindow : space == Space::Local ? kLocalWindow : 0;
  d.ins.immediate = to ? -window : window;
  d.out(Type::U64);
  d.in(Type::U64);
  d.done(add_base);
}

void isspacep_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t* a = warp.reg<uint64_t>(i.r[1]);
  write_predicate(warp, i.r[0], mask, lanes_where([&](int lane) {
                    const bool shared = a[lane] - kSharedWindow < kWindowBytes,
                               local = a[lane] - kLocalWindow < kWindowBytes;
                    return Space(i.a) == Space::Shared  ? shared
                           : Space(i.a) == Space::Local ? local
                                                        : Space(i.a) == Space::Global && !shared && !local;
                  }));
}

void isspacep(Decoder& d) {
  const Space space = take_space(d);
  if (space == Space::Generic || space == Space::Param || space == Space::Const)
    d.not_built("isspacep of this space");
  d.ins.a = uint8_t(space);
  d.out(Type::Pred);
  d.in(Type::U64);
  d.done(isspacep_run);
}

}  // namespace

void add_address_opcodes(Opcodes& table) {
  table["cvta"] = cvta;
  table["isspacep"] = isspacep;
}
}  // namespace soft
