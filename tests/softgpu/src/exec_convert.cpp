// cvt and its packed forms. PTX manual 9.7.9.
//
// A conversion reads a value exactly (an integer in 64 bits, a float as a double), rounds it once to
// the destination and stores it as wide as the register is. The common ones have their own vector loops.
#include <algorithm>
#include <limits>

#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
enum Flags : uint8_t { kFlush = 1, kSaturate = 2, kRelu = 4, kIntegral = 8 };  // Instruction::c
// Instruction::a and b: the types to and from; d: the Round; count: the destination register's width; width: the
// source's.

int64_t read_integer(const Warp& warp, const Instruction& i, int lane) {
  int64_t raw = 0;
  switch (i.width) {
    case 2: raw = warp.reg<uint16_t>(i.r[1])[lane]; break;
    case 4: raw = warp.reg<uint32_t>(i.r[1])[lane]; break;
    default: raw = warp.reg<int64_t>(i.r[1])[lane]; break;
  }
  const Type type = Type(i.b);
  const int unused = 64 - 8 * width_of(type);
  return is_signed(type) ? int64_t(uint64_t(raw) << unused) >> unused : int64_t(uint64_t(raw) << unused >> unused);
}

double read_float(const Warp& warp, const Instruction& i, int lane) {
  switch (Type(i.b)) {
    case Type::F16: {
      const uint16_t raw = warp.reg<uint16_t>(i.r[1])[lane];
      return half_to_float(i.c & kFlush ? flush_half(raw) : raw);
    }
    case Type::BF16: return bf16_to_float(warp.reg<uint16_t>(i.r[1])[lane]);
    case Type::F32: {
      const float raw = warp.reg<float>(i.r[1])[lane];
      return i.c & kFlush ? flush(raw) : raw;
    }
    default: return warp.reg<double>(i.r[1])[lane];
  }
}

void write_bits(Warp& warp, const Instruction& i, int lane, uint64_t value) {
  switch (i.count) {
    case 2: warp.reg<uint16_t>(i.r[0])[lane] = uint16_t(value); break;
    case 4: warp.reg<uint32_t>(i.r[0])[lane] = uint32_t(value); break;
    default: warp.reg<uint64_t>(i.r[0])[lane] = value; break;
  }
}

double integral(double x, Round round) {
  switch (round) {
    case Round::Zero: return std::trunc(x);
    case Round::Down: return std::floor(x);
    case Round::Up: return std::ceil(x);
    default: return std::nearbyint(x);
  }
}

// A double to the bits of a float format; -0 and NaN as the format has them.
uint64_t float_bits(double x, Type to, Round round, uint8_t flags) {
  if (flags & kIntegral) x = integral(x, round);
  if (flags & kSaturate) x = saturate(x);
  if ((flags & kRelu) && std::signbit(x)) x = x == x ? 0.0 : x;
  switch (to) {
    case Type::F16: {
      const uint16_t result = to_half(x, round);
      return flags & kFlush ? flush_half(result) : result;
    }
    case Type::BF16: return to_bf16(x, round);
    case Type::TF32: return x == x ? round_to(kTensor32, x, round) << 13 : kNan32;
    case Type::F32: {
      const uint32_t result = x == x ? round_to(kSingle, x, round) : kNan32;
      return flags & kFlush ? std::bit_cast<uint32_t>(flush(std::bit_cast<float>(result))) : result;
    }
    default: return std::bit_cast<uint64_t>(x);
  }
}

// An integer that a double may not hold: round to odd into one first.
double integer_to_odd(int64_t value, bool is_unsigned) {
  const bool negative = !is_unsigned && value < 0;
  uint64_t magnitude = negative ? 0 - uint64_t(value) : uint64_t(value);
  if (magnitude >> 53) {
    const int extra = 64 - 53 - std::countl_zero(magnitude);
    const bool rest = magnitude & ((1ull << extra) - 1);
    magnitude = (magnitude >> extra | uint64_t(rest)) << extra;
  }
  return negative ? -double(magnitude) : double(magnitude);
}

void float_to_float(Warp& warp, const Instruction& i, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    write_bits(warp, i, lane, float_bits(read_float(warp, i, lane), Type(i.a), Round(i.d), i.c));
  });
}

void integer_to_float(Warp& warp, const Instruction& i, uint32_t mask) {
  const bool is_unsigned = !is_signed(Type(i.b));
  each_lane(mask, [&](int lane) {
    const int64_t value = read_integer(warp, i, lane);
    if (Type(i.a) != Type::F64) {
      write_bits(warp, i, lane, float_bits(integer_to_odd(value, is_unsigned), Type(i.a), Round(i.d), i.c));
      return;
    }
    volatile int64_t source = value;
    volatile double result;
    {
      const Rounding rounding{Round(i.d)};
      result = is_unsigned ? double(uint64_t(source)) : double(int64_t(source));
    }
    write_bits(warp, i, lane, std::bit_cast<uint64_t>(i.c & kSaturate ? saturate(double(result)) : double(result)));
  });
}

// Out of range clamps. NaN is 0, but the top bit alone where an f64 or a 64-bit result takes part: the manual's
// words.
void float_to_integer(Warp& warp, const Instruction& i, uint32_t mask) {
  const Type to = Type(i.a), from = Type(i.b);
  const int width = 8 * width_of(to);
  each_lane(mask, [&](int lane) {
    const double x = integral(read_float(warp, i, lane), Round(i.d));
    uint64_t result;
    if (x != x) {
      const uint64_t least = is_signed(to) ? ~0ull << (width - 1) : 1ull << (width - 1);
      result = from == Type::F64 || width == 64 ? least : 0;
    } else if (is_signed(to)) {
      const double limit = std::ldexp(1.0, width - 1);
      const int64_t most = int64_t((1ull << (width - 1)) - 1);
      result = uint64_t(x >= limit ? most : x < -limit ? -most - 1 : int64_t(x));
    } else {
      const double limit = std::ldexp(1.0, width);
      result = x >= limit ? (width == 64 ? ~0ull : (1ull << width) - 1) : x <= 0 ? 0 : uint64_t(x);
    }
    write_bits(warp, i, lane, result);
  });
}

void integer_to_integer(Warp& warp, const Instruction& i, uint32_t mask) {
  const Type to = Type(i.a), from = Type(i.b);
  const int width = 8 * width_of(to);
  each_lane(mask, [&](int lane) {
    int64_t value = read_integer(warp, i, lane);
    if (i.c & kSaturate) {
      if (is_signed(from) && is_signed(to)) {
        const int64_t most = width == 64 ? INT64_MAX : (1ll << (width - 1)) - 1;
        value = std::clamp<int64_t>(value, -most - 1, most);
      } else if (is_signed(from)) {
        const uint64_t most = width == 64 ? ~0ull : (1ull << width) - 1;
        value = value < 0 ? 0 : int64_t(std::min(uint64_t(value), most));
      } else {
        const uint64_t most = is_signed(to) ? (1ull << (width - 1)) - 1 : width == 64 ? ~0ull : (1ull << width) - 1;
        value = int64_t(std::min(uint64_t(value), most));
      }
    }
    // A wider register takes the sign or zeros of the destination's type.
    const int unused = 64 - width;
    const uint64_t low = uint64_t(value) << unused;
    write_bits(warp, i, lane, is_signed(to) ? uint64_t(int64_t(low) >> unused) : low >> unused);
  });
}

// --- loops for what kernels do most
template <class D, class S>
void plain(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(a[lane]); });
}
void float_from_half(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint16_t* a = warp.reg<uint16_t>(i.r[1]);
  for_lanes(warp.reg<float>(i.r[0]), mask, [&](int lane) { return canonical(half_to_float(a[lane])); });
}
void half_from_float(Warp& warp, const Instruction& i, uint32_t mask) {
  const float* a = warp.reg<float>(i.r[1]);
  for_lanes(warp.reg<uint16_t>(i.r[0]), mask, [&](int lane) { return float_to_half(a[lane]); });
}
void bf16_from_float(Warp& warp, const Instruction& i, uint32_t mask) {
  const float* a = warp.reg<float>(i.r[1]);
  for_lanes(warp.reg<uint16_t>(i.r[0]), mask, [&](int lane) { return float_to_bf16(a[lane]); });
}

Handler quick(Type to, Type from, Round round, uint8_t flags, int to_width, int from_width) {
  if (flags) return nullptr;
  const bool nearest = round == Round::Nearest;
  if (to == Type::F32 && from == Type::F16) return float_from_half;
  if (to == Type::F16 && from == Type::F32 && nearest && to_width == 2) return half_from_float;
  if (to == Type::BF16 && from == Type::F32 && nearest && to_width == 2) return bf16_from_float;
  if (to == Type::F32 && nearest && from_width == 4 && from == Type::S32) return plain<float, int32_t>;
  if (to == Type::F32 && nearest && from_width == 4 && from == Type::U32) return plain<float, uint32_t>;
  if (is_float(to) || is_float(from) || to_width != width_of(to) || from_width != width_of(from)) return nullptr;
  if (to_width == 8 && from_width == 4) return is_signed(from) ? plain<uint64_t, int32_t> : plain<uint64_t, uint32_t>;
  if (to_width == 4 && from_width == 8) return plain<uint32_t, uint64_t>;
  if (to_width == 4 && from_width == 2) return is_signed(from) ? plain<uint32_t, int16_t> : plain<uint32_t, uint16_t>;
  if (to_width == 2 && from_width == 4) return plain<uint16_t, uint32_t>;
  return nullptr;
}

// --- two floats to a packed register. The first source is the high half.
void pack_from_floats(Warp& warp, const Instruction& i, uint32_t mask) {
  const float *high = warp.reg<float>(i.r[1]), *low = warp.reg<float>(i.r[2]);
  const Type to = Type(i.a);
  if (i.c == 0 && Round(i.d) == Round::Nearest && (to == Type::F16x2 || to == Type::BF16x2)) {
    uint32_t* out = warp.reg<uint32_t>(i.r[0]);
    if (to == Type::BF16x2) {
      return for_lanes(
          out, mask, [&](int lane) { return uint32_t(float_to_bf16(high[lane])) << 16 | float_to_bf16(low[lane]); });
    }
    return for_lanes(out, mask,
                     [&](int lane) { return uint32_t(float_to_half(high[lane])) << 16 | float_to_half(low[lane]); });
  }
  each_lane(mask, [&](int lane) {
    const auto one = [&](float x) -> uint32_t {
      if (to == Type::F16x2 || to == Type::BF16x2) {
        return uint32_t(float_bits(x, to == Type::F16x2 ? Type::F16 : Type::BF16, Round(i.d), i.c));
      }
      if ((i.c & kRelu) && std::signbit(x) && x == x) x = 0;
      return round_to_fp8(to == Type::E4M3x2, x);
    };
    const int shift = width_of(to) * 4;
    write_bits(warp, i, lane, one(high[lane]) << shift | one(low[lane]));
  });
}

void fp8_from_halves(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t* a = warp.reg<uint32_t>(i.r[1]);
  const bool e4m3 = Type(i.a) == Type::E4M3x2;
  uint16_t* to = warp.reg<uint16_t>(i.r[0]);
  each_lane(mask, [&](int lane) {
    const auto one = [&](uint16_t x) {
      return round_to_fp8(e4m3, (i.c & kRelu) && (x & 0x8000) && (x & 0x7fff) <= 0x7c00 ? 0.0f : half_to_float(x));
    };
    to[lane] = uint16_t(one(uint16_t(a[lane] >> 16)) << 8 | one(uint16_t(a[lane])));
  });
}

void halves_from_fp8(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint16_t* a = warp.reg<uint16_t>(i.r[1]);
  const bool e4m3 = Type(i.b) == Type::E4M3x2;
  uint32_t* to = warp.reg<uint32_t>(i.r[0]);
  each_lane(mask, [&](int lane) {
    const auto one = [&](uint8_t x) -> uint32_t {
      const float value = fp8_to_float(e4m3, x);
      return (i.c & kRelu) && value < 0 ? 0u : value == 0 && (i.c & kRelu) ? 0u : to_half(value);
    };
    to[lane] = one(uint8_t(a[lane] >> 8)) << 16 | one(uint8_t(a[lane]));
  });
}

void packed_form(Decoder& d, Type to, Type from, int rounding, bool relu, bool satfinite, bool ftz, bool sat) {
  if (ftz || sat) d.refuse("this modifier of a packed conversion");
  d.ins.a = uint8_t(to);
  d.ins.b = uint8_t(from);
  d.ins.c = relu ? kRelu : 0;
  d.ins.d = uint8_t(rounding);
  d.ins.count = uint8_t(width_of(to));
  const bool to_fp8 = to == Type::E4M3x2 || to == Type::E5M2x2,
             from_fp8 = from == Type::E4M3x2 || from == Type::E5M2x2;
  if (to_fp8 || from_fp8) {
    d.need(81, 89);
    if (rounding != int(Round::Nearest) || satfinite != to_fp8)
      d.refuse("fp8 conversions are .rn, and .satfinite to fp8");
  }
  if (from_fp8) {
    if (to != Type::F16x2) d.refuse("fp8 converts to .f16x2");
    d.out(to);
    d.in(Type::B16);
    return d.done(halves_from_fp8);
  }
  if (to_fp8 && from == Type::F16x2) {
    d.out(Type::B16);
    d.in(from);
    return d.done(fp8_from_halves);
  }
  if (from != Type::F32) d.not_built("this packed conversion");
  if (!to_fp8) d.need(70, 80);
  if (!to_fp8 && rounding != int(Round::Nearest) && rounding != int(Round::Zero)) d.refuse("needs .rn or .rz");
  if (satfinite && !to_fp8) d.not_built("satfinite of this conversion");
  d.out(to_fp8 ? Type::B16 : to);
  d.in(from);
  d.in(from);
  d.done(pack_from_floats);
}

bool is_integer(Type type) { return type >= Type::U8 && type <= Type::S64; }

void cvt(Decoder& d) {
  if (d.modifier() == "pack") d.not_built("cvt.pack");
  const int integer_rounding = d.take_one_of({"rni", "rzi", "rmi", "rpi"});
  int rounding = integer_rounding < 0 ? d.take_one_of({"rn", "rz", "rm", "rp", "rna"}) : -1;
  bool satfinite = d.take("satfinite");
  const bool relu = d.take("relu");
  satfinite = satfinite || d.take("satfinite");
  const bool ftz = d.take("ftz"), sat = d.take("sat");
  const Type to = d.take_type(), from = d.take_type();
  const bool packed = width_of(to) == width_of(from) ? to == Type::E4M3x2 || to == Type::E5M2x2 : false;
  if (packed || to == Type::F16x2 || to == Type::BF16x2 || to == Type::E4M3x2 || to == Type::E5M2x2) {
    if (integer_rounding >= 0 || rounding < 0) d.refuse("needs a rounding");
    return packed_form(d, to, from, rounding, relu, satfinite, ftz, sat);
  }
  const auto scalar = [](Type type) {
    return is_integer(type) || type == Type::F16 || type == Type::BF16 || type == Type::F32 || type == Type::F64;
  };
  if (!(scalar(to) || to == Type::TF32) || !scalar(from)) d.refuse("no such conversion");
  if (satfinite) d.not_built(".satfinite of this conversion");
  const bool to_float = !is_integer(to), from_float = !is_integer(from);
  // Which roundings a conversion must, may and must not have.
  const bool narrows = to_float && (!from_float || width_of(to) < width_of(from) || to == Type::TF32 ||
                                    (to != from && width_of(to) == width_of(from)));
  if (narrows && rounding < 0) d.refuse("needs a floating-point rounding");
  if (!narrows && rounding >= 0) d.refuse("takes no floating-point rounding");
  if (from_float && !to_float && integer_rounding < 0) d.refuse("needs an integer rounding");
  if (integer_rounding >= 0 && !from_float) d.refuse("takes no integer rounding");
  if (integer_rounding >= 0 && to_float && to != from) d.refuse("takes no integer rounding");
  if (sat && !from_float && !to_float) {
    const bool holds = is_signed(to) == is_signed(from) ? width_of(to) >= width_of(from)
                                                        : is_signed(to) && width_of(to) > width_of(from);
    if (holds) d.refuse(".sat where every value fits");
  }
  if (ftz && to != Type::F32 && from != Type::F32) d.refuse(".ftz without an .f32");
  if (to == Type::TF32) {
    if (from != Type::F32) d.refuse("tf32 comes from .f32");
    rounding == int(Round::NearestAway) ? d.need(70, 80) : d.need(78, 90);
    if (relu && rounding == int(Round::NearestAway)) d.refuse(".relu with .rna");
    if (rounding == int(Round::Down) || rounding == int(Round::Up) || sat) d.refuse("this conversion to tf32");
  } else if (rounding == int(Round::NearestAway)) {
    d.refuse(".rna is for tf32");
  }
  if (to == Type::BF16) {
    if (from == Type::F32 && !sat && rounding <= int(Round::Zero)) {
      d.need(70, 80);
    } else {
      d.need(78, 90);
    }
  }
  if (from == Type::BF16) to == Type::F32 ? d.need(71, 80) : d.need(78, 90);
  if (to == Type::BF16 || from == Type::BF16) {
    if (sat || width_of(to) == 1 || width_of(from) == 1) d.refuse("no such conversion of bf16");
  }
  if (relu && !((to == Type::F16 || to == Type::BF16 || to == Type::TF32) && from == Type::F32))
    d.refuse(".relu of this conversion");
  if (relu && (to == Type::F16 || to == Type::BF16)) d.need(70, 80);

  const uint8_t flags = uint8_t((ftz ? kFlush : 0) | (sat ? kSaturate : 0) | (relu ? kRelu : 0) |
                                (integer_rounding >= 0 && to_float ? kIntegral : 0));
  d.ins.a = uint8_t(to);
  d.ins.b = uint8_t(from);
  d.ins.c = flags;
  d.ins.d = uint8_t(integer_rounding >= 0 ? integer_rounding : std::max(rounding, 0));
  int to_width = 0, from_width = 0;
  if (to == Type::TF32) {
    d.out(Type::B32);
    to_width = 4;
  } else if (to_float) {
    d.out(to);
    to_width = width_of(to);
  } else {
    d.out_wide(to, &to_width);
  }
  if (from_float) {
    d.in(from);
    from_width = width_of(from);
  } else {
    d.in_wide(from, &from_width);
  }
  d.ins.count = uint8_t(to_width);
  d.ins.width = uint8_t(from_width);
  if (const Handler handler = quick(to, from, Round(d.ins.d), flags, to_width, from_width)) return d.done(handler);
  d.done(to_float ? (from_float ? float_to_float : integer_to_float)
                  : (from_float ? float_to_integer : integer_to_integer));
}
}  // namespace

void add_convert_opcodes(Opcodes& table) { table["cvt"] = cvt; }
}  // namespace soft
