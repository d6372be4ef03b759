// Division, reciprocals, roots, exponentials: exact forms, and approximate ones moved within their documented error.
//
// An approximate result is computed in double and moved by a hash of the seed and its operands: a function of its
// inputs, as on a card, and another one for each seed. Values that the manual fixes (zeros, infinities, NaN) do not
// move. PTX manual 9.7.3 (f32, f64) and 9.7.4 (f16, bf16).
#include <algorithm>

#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
struct Jitter {
  explicit Jitter(const Warp& warp)
      : seed(warp.block->grid->seed * 0x2545f4914f6cdd1dull), on(warp.block->grid->jitter) {}
  // In (-1, 1), by operands.
  double unit(uint32_t a, uint32_t b = 0) const {
    if (!on) return 0;
    return double(int64_t(mix(seed ^ (uint64_t(b) << 32 | a)))) * 0x1p-63;
  }
  uint64_t seed;
  bool on;
};

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

// A value moved by at most `ulps` of the fp32 result, the last half of one left for rounding.
float moved_ulps(double exact, double ulps, double unit) {
  const float rounded = float(exact);
  if (rounded == 0 || !std::isfinite(rounded)) return canonical(rounded);
  const double ulp =
      std::max(std::fabs(exact), 0x1p-126) * 0x1p-23;  // up to twice the ulp within a binade, so halved
  return float(exact + unit * 0.5 * (ulps - 0.5) * ulp);
}
// The same by a relative error.
float moved_relative(double exact, double bound, double unit) {
  if (exact == 0 || !std::isfinite(exact)) return canonical(float(exact));
  return float(exact * (1 + unit * (bound - 0x1p-24)));
}

enum Operation { kDivApprox, kDivFull, kRcp, kSqrt, kRsqrt, kEx2, kLg2, kTanh };

template <int op>
float approximate(float a, float b, const Jitter& jitter) {
  const double x = a;
  const double unit = jitter.unit(bits(a), op <= kDivFull ? bits(b) : 0u);
  switch (op) {
    case kDivApprox:
      // a * (1 / b), whose reciprocal leaves the range for the largest divisors.
      if (std::fabs(b) > 0x1p126f && std::isfinite(b))
        return std::isinf(a) ? std::bit_cast<float>(kNan32) : std::copysign(0.0f, a) * std::copysign(1.0f, b);
      return moved_ulps(x / double(b), 2, unit);
    case kDivFull: return moved_ulps(x / double(b), 2, unit);
    case kRcp: return moved_ulps(1 / x, 1, unit);
    case kSqrt: return moved_relative(std::sqrt(x), 0x1p-23, unit);
    case kRsqrt: return moved_relative(1 / std::sqrt(x), 0x1.12p-23, unit);  // 2^-22.9
    case kEx2: return std::fabs(a) < 0x1p-126f ? 1.0f : moved_ulps(std::exp2(x), 2, unit);
    case kLg2: {
      const double exact = std::log2(x);
      if (a == 1.0f || !std::isfinite(exact)) return canonical(float(exact));
      if (a >= 0.5f && a <= 2.0f) return float(exact + unit * (0x1p-22 - 0x1p-24));
      return moved_relative(exact, 0x1p-22, unit);
    }
    default:
      if (std::isinf(a)) return std::copysign(1.0f, a);
      if (std::fabs(a) < 0x1p-126f) return a;
      return std::clamp(moved_relative(std::tanh(x), 0x1p-11, unit), -1.0f, 1.0f);
  }
}

template <int op, bool ftz>
void approximate_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const Jitter jitter(warp);
  const float* a = warp.reg<float>(i.r[1]);
  const float* b = op <= kDivFull ? warp.reg<float>(i.r[2]) : a;
  float* to = warp.reg<float>(i.r[0]);
  each_lane(mask, [&](int lane) {
    const float x = ftz ? flush(a[lane]) : a[lane], y = ftz ? flush(b[lane]) : b[lane];
    const float result = approximate<op>(x, y, jitter);
    to[lane] = ftz ? flush(result) : result;
  });
}

void approximate_form(Decoder& d, Handler plain, Handler ftz_form, int sources, bool ftz) {
  d.want_type({Type::F32});
  d.out(Type::F32);
  for (int n = 0; n < sources; ++n) d.in(Type::F32);
  d.done(ftz ? ftz_form : plain);
}

void exact_form(Decoder& d, Round round, int sources) {
  d.ins.a = uint8_t(round);
  const bool ftz = d.take("ftz");
  const Type type = ftz ? d.want_type({Type::F32}) : d.want_type({Type::F32, Type::F64});
  d.out(type);
  for (int n = 0; n < sources; ++n) d.in(type);
  d.done(float_operation(type, d.opcode(), round, ftz, false));
}

// The gross approximations of fp64 keep the upper 32 bits of the result.
template <bool root>
void gross64(Warp& warp, const Instruction& i, uint32_t mask) {
  const double* a = warp.reg<double>(i.r[1]);
  for_lanes(warp.reg<double>(i.r[0]), mask, [&](int lane) {
    const auto flush64 = [](double x) { return std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x; };
    const double x = i.a ? flush64(a[lane]) : a[lane];
    const double result = root ? 1 / std::sqrt(x) : 1 / x;
    if (result != result) return std::bit_cast<double>(uint64_t(0x7fffffff00000000));
    const uint64_t cut =
        i.a ? std::bit_cast<uint64_t>(result) & 0xffffffff00000000ull : std::bit_cast<uint64_t>(result);
    return i.a ? flush64(std::bit_cast<double>(cut)) : std::bit_cast<double>(cut);
  });
}

void rcp_root(Decoder& d) {
  const std::string& name = d.opcode();
  const bool rcp = name == "rcp", rsqrt = name == "rsqrt";
  const int rounding = rsqrt ? -1 : d.take_one_of({"rn", "rz", "rm", "rp"});
  if (rounding >= 0) return exact_form(d, Round(rounding), 1);
  d.want_one_of({"approx"});
  const bool ftz = d.take("ftz");
  if (d.last_type() == Type::F64) {
    if (!(rsqrt || (rcp && ftz))) d.not_built("this approximation of .f64");
    d.want_type({Type::F64});
    d.ins.a = ftz;
    d.out(Type::F64);
    d.in(Type::F64);
    return d.done(rcp ? gross64<false> : gross64<true>);
  }
  if (rcp) return approximate_form(d, approximate_run<kRcp, false>, approximate_run<kRcp, true>, 1, ftz);
  if (rsqrt) return approximate_form(d, approximate_run<kRsqrt, false>, approximate_run<kRsqrt, true>, 1, ftz);
  approximate_form(d, approximate_run<kSqrt, false>, approximate_run<kSqrt, true>, 1, ftz);
}

// --- ex2 and tanh of halves: r[0] = f(r[1]), packed or not; Instruction::b is the flags
enum HalfFlags : uint8_t { kPacked = 1, kBrain = 2, kFlush = 4, kTangent = 8 };
void half_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const Jitter jitter(warp);
  const bool brain = i.b & kBrain, tangent = i.b & kTangent, ftz = i.b & kFlush;
  const auto apply = [&](uint16_t raw) -> uint16_t {
    const uint16_t source = ftz && !brain ? flush_half(raw) : raw;
    const double x = brain ? bf16_to_float(source) : half_to_float(source);
    const double unit = jitter.unit(source, i.b);
    const double exact = tangent ? std::tanh(x) : std::exp2(x);
    const double rounding = brain ? 0x1p-9 : 0x1p-12;  // of a value of [0.5, 1), half a place
    double result = exact;
    if (x != 0 && std::isfinite(x) && exact != 0) {
      if (tangent) {
        result = exact + unit * ((brain ? 0x1p-8 : 0x1.02p-11) - rounding);
        result = std::clamp(std::copysign(result, x), -1.0, 1.0);
      } else {
        result = exact * (1 + unit * ((brain ? 0x1p-7 : 0x1.12p-10) - 2 * rounding));
      }
    }
    const uint16_t rounded = brain ? to_bf16(result) : to_half(result);
    if (!ftz) return rounded;
    return brain ? ((rounded & 0x7f80) == 0 ? rounded & 0x8000 : rounded) : flush_half(rounded);
  };
  if (i.b & kPacked) {
    const uint32_t* a = warp.reg<uint32_t>(i.r[1]);
    uint32_t* to = warp.reg<uint32_t>(i.r[0]);
    each_lane(mask, [&](int lane) {
      to[lane] = apply(uint16_t(a[lane])) | uint32_t(apply(uint16_t(a[lane] >> 16))) << 16;
    });
  } else {
    const uint16_t* a = warp.reg<uint16_t>(i.r[1]);
    uint16_t* to = warp.reg<uint16_t>(i.r[0]);
    each_lane(mask, [&](int lane) { to[lane] = apply(a[lane]); });
  }
}

void half_form(Decoder& d, bool tangent, bool ftz) {
  const Type type = d.want_type({Type::F16, Type::F16x2, Type::BF16, Type::BF16x2});
  const bool brain = type == Type::BF16 || type == Type::BF16x2;
  if (brain && !tangent && !ftz) d.refuse("ex2 of bf16 is .ftz");
  if (!brain && ftz) d.refuse("ex2 of f16 keeps subnormals");
  d.need(brain ? 78 : 70, brain ? 90 : 75);
  d.ins.b = uint8_t((type == Type::F16x2 || type == Type::BF16x2 ? kPacked : 0) | (brain ? kBrain : 0) |
                    (ftz ? kFlush : 0) | (tangent ? kTangent : 0));
  d.out(type);
  d.in(type);
  d.done(half_run);
}

void exponential(Decoder& d) {
  const bool tangent = d.opcode() == "tanh", lg2 = d.opcode() == "lg2";
  d.want_one_of({"approx"});
  const bool ftz = !tangent && d.take("ftz");
  if (d.last_type() != Type::F32 && !lg2) return half_form(d, tangent, ftz);
  if (tangent) {
    d.need(70, 75);
    return approximate_form(d, approximate_run<kTanh, false>, nullptr, 1, false);
  }
  if (lg2) return approximate_form(d, approximate_run<kLg2, false>, approximate_run<kLg2, true>, 1, ftz);
  approximate_form(d, approximate_run<kEx2, false>, approximate_run<kEx2, true>, 1, ftz);
}

// Their error grows with the argument; the rotary table comes from the host instead.
template <bool cosine, bool ftz>
void sin_cos_run(Warp& warp, const Instruction& i, uint32_t mask) {
  finding("sin-cos", "sin and cos are approximate on a card; tables of them come from the host", warp.site, -1);
  const float* a = warp.reg<float>(i.r[1]);
  float* to = warp.reg<float>(i.r[0]);
  each_lane(mask, [&](int lane) {
    const double x = ftz ? flush(a[lane]) : a[lane];
    to[lane] = canonical(float(cosine ? std::cos(x) : std::sin(x)));
  });
}

void sin_cos(Decoder& d) {
  d.want_one_of({"approx"});
  const bool ftz = d.take("ftz");
  if (d.opcode() == "cos") return approximate_form(d, sin_cos_run<true, false>, sin_cos_run<true, true>, 1, ftz);
  approximate_form(d, sin_cos_run<false, false>, sin_cos_run<false, true>, 1, ftz);
}
}  // namespace

void decode_division(Decoder& d) {
  const int rounding = d.take_one_of({"rn", "rz", "rm", "rp"});
  if (rounding >= 0) return exact_form(d, Round(rounding), 2);
  const bool full = d.want_one_of({"approx", "full"}) == 1;
  const bool ftz = d.take("ftz");
  if (full) return approximate_form(d, approximate_run<kDivFull, false>, approximate_run<kDivFull, true>, 2, ftz);
  approximate_form(d, approximate_run<kDivApprox, false>, approximate_run<kDivApprox, true>, 2, ftz);
}

void add_approximate_opcodes(Opcodes& table) {
  table["rcp"] = table["sqrt"] = table["rsqrt"] = rcp_root;
  table["ex2"] = table["lg2"] = table["tanh"] = exponential;
  table["sin"] = table["cos"] = sin_cos;
}
}  // namespace soft
