// fp32 and fp64 arithmetic with every rounding, .ftz and .sat. PTX manual 9.7.3.
#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
// Where an instruction says how it rounds: Instruction::a is a Round.
template <class T> T fused(T a, T b, T c) {
  if constexpr (sizeof(T) == 4)
    return __builtin_fmaf(a, b, c);
  else
    return __builtin_fma(a, b, c);
}

template <class T, bool ftz> T read(T x) {
  if constexpr (ftz)
    return flush(x);
  else
    return x;
}
template <class T, bool ftz, bool sat> T finish(T x) {
  if constexpr (sat) x = saturate(x);
  if constexpr (sizeof(T) == 4) {
    if constexpr (ftz) x = flush(x);
    if constexpr (!sat) x = canonical(x);
  }
  return x;
}

enum Operation { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };
template <class T, int op>
T compute(T a, T b, T c) {
  switch (op) {
    case kAdd: return a + b;
    case kSub: return a - b;
    case kMul: return a * b;
    case kFma: return fused(a, b, c);
    case kDiv: return a / b;
    case kRcp: return T(1) / a;
    default: return std::sqrt(a);
  }
}
constexpr int sources(int op) { return op == kFma ? 3 : op >= kRcp ? 1 : 2; }

template <class T, int op, bool ftz, bool sat>
void float_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  const T* b = sources(op) > 1 ? warp.reg<T>(i.r[2]) : a;
  const T* c = sources(op) > 2 ? warp.reg<T>(i.r[3]) : a;
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) {
    return finish<T, ftz, sat>(compute<T, op>(read<T, ftz>(a[lane]), read<T, ftz>(b[lane]), read<T, ftz>(c[lane])));
  });
}

template <class T, int op, bool ftz, bool sat>
__attribute__((noinline)) void float_directed(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  const T* b = sources(op) > 1 ? warp.reg<T>(i.r[2]) : a;
  const T* c = sources(op) > 2 ? warp.reg<T>(i.r[3]) : a;
  alignas(64) T raw[kLanes];
  {
    const Rounding rounding{Round(i.a)};
    SOFT_LANES
      raw[lane] = compute<T, op>(read<T, ftz>(a[lane]), read<T, ftz>(b[lane]), read<T, ftz>(c[lane]));
    asm volatile("" ::"r"(raw) : "memory");
  }
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) { return finish<T, ftz, sat>(raw[lane]); });
}

template <class T, int op>
Handler float_handler(Round round, bool ftz, bool sat) {
  const bool directed = round != Round::Nearest;
  if constexpr (sizeof(T) == 8) {
    return directed ? float_directed<T, op, false, false> : float_run<T, op, false, false>;
  } else if (directed) {
    return ftz ? (sat ? float_directed<T, op, true, true> : float_directed<T, op, true, false>)
               : (sat ? float_directed<T, op, false, true> : float_directed<T, op, false, false>);
  } else {
    return ftz ? (sat ? float_run<T, op, true, true> : float_run<T, op, true, false>)
               : (sat ? float_run<T, op, false, true> : float_run<T, op, false, false>);
  }
}

template <class T>
Handler float_handler(int op, Round round, bool ftz, bool sat) {
  switch (op) {
    case kAdd: return float_handler<T, kAdd>(round, ftz, sat);
    case kSub: return float_handler<T, kSub>(round, ftz, sat);
    case kMul: return float_handler<T, kMul>(round, ftz, sat);
    case kFma: return float_handler<T, kFma>(round, ftz, sat);
    case kDiv: return float_handler<T, kDiv>(round, ftz, sat);
    case kRcp: return float_handler<T, kRcp>(round, ftz, sat);
    default: return float_handler<T, kSqrt>(round, ftz, sat);
  }
}

// --- min, max, abs, neg
template <bool least, bool nan, bool ftz>
float extreme(float a, float b) {
  a = read<float, ftz>(a);
  b = read<float, ftz>(b);
  const bool either = a != a || b != b;
  // -0 < +0: of equal values the signs decide.
  const float equal = std::bit_cast<float>(least ? std::bit_cast<uint32_t>(a) | std::bit_cast<uint32_t>(b)
                                                 : std::bit_cast<uint32_t>(a) & std::bit_cast<uint32_t>(b));
  const float picked = a == b ? equal : (a < b) == least ? a : b;
  const float other = canonical(a != a ? b : a);
  return either ? (nan ? std::bit_cast<float>(kNan32) : other) : picked;
}

template <bool least, bool nan, bool ftz>
float extreme_xorsign(float a, float b) {
  const uint32_t sign = (std::bit_cast<uint32_t>(a) ^ std::bit_cast<uint32_t>(b)) & 0x80000000;
  const float magnitude = extreme<least, nan, ftz>(std::fabs(a), std::fabs(b));
  return magnitude != magnitude ? magnitude : std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

template <bool least>
double extreme64(double a, double b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) {
    const uint64_t x = std::bit_cast<uint64_t>(a), y = std::bit_cast<uint64_t>(b);
    return std::bit_cast<double>(least ? x | y : x & y);
  }
  return (a < b) == least ? a : b;
}

template <bool least, bool ftz>
Handler extreme_handler(bool nan, bool xorsign) {
  using F = float;
  if (xorsign)
    return nan ? map2<F, F, extreme_xorsign<least, true, ftz>> : map2<F, F, extreme_xorsign<least, false, ftz>>;
  return nan ? map2<F, F, extreme<least, true, ftz>> : map2<F, F, extreme<least, false, ftz>>;
}

void min_max(Decoder& d) {
  const bool least = d.opcode() == "min";
  const bool ftz = d.take("ftz"), nan = d.take("NaN");
  bool xorsign = false;
  if (nan) d.need(70, 80);
  if (d.take("xorsign")) {
    d.need(72, 86);
    d.want_one_of({"abs"});
    xorsign = true;
  }
  const Type type = ftz || nan || xorsign ? d.want_type({Type::F32}) : d.want_type({Type::F32, Type::F64});
  d.out(type);
  d.in(type);
  d.in(type);
  if (type == Type::F64)
    return d.done(least ? map2<double, double, extreme64<true>> : map2<double, double, extreme64<false>>);
  d.done(least ? (ftz ? extreme_handler<true, true>(nan, xorsign) : extreme_handler<true, false>(nan, xorsign))
               : (ftz ? extreme_handler<false, true>(nan, xorsign) : extreme_handler<false, false>(nan, xorsign)));
}

uint32_t flushed(uint32_t x) { return (x & 0x7f800000) == 0 ? x & 0x80000000 : x; }

void abs_neg(Decoder& d) {
  const bool absolute = d.opcode() == "abs";
  const bool ftz = d.take("ftz");
  const Type type = ftz ? d.want_type({Type::F32}) : d.want_type({Type::F32, Type::F64});
  d.out(type);
  d.in(type);
  using U = uint32_t;
  using W = uint64_t;
  if (type == Type::F64) {
    return d.done(absolute ? map1<W, W, [](W x) { return x & INT64_MAX; }>
                           : map1<W, W, [](W x) { return x ^ (1ull << 63); }>);
  }
  if (ftz) {
    return d.done(absolute ? map1<U, U, [](U x) { return flushed(x) & 0x7fffffff; }>
                           : map1<U, U, [](U x) { return flushed(x) ^ 0x80000000; }>);
  }
  d.done(absolute ? map1<U, U, [](U x) { return x & 0x7fffffff; }> : map1<U, U, [](U x) { return x ^ 0x80000000; }>);
}

void operation(Decoder& d, int op) {
  const int named = d.take_one_of({"rn", "rz", "rm", "rp"});
  if (named < 0 && op == kFma) d.refuse("fma needs a rounding");
  const Round round = named < 0 ? Round::Nearest : Round(named);
  d.ins.a = uint8_t(round);
  d.ins.b = named < 0;  // may be contracted with a neighbour (exec_contract.cpp)
  const bool ftz = d.take("ftz"), sat = d.take("sat");
  const Type type = ftz || sat ? d.want_type({Type::F32}) : d.want_type({Type::F32, Type::F64});
  d.ins.c = uint8_t((ftz ? 1 : 0) | (sat ? 2 : 0));
  d.out(type);
  for (int n = 0; n < sources(op); ++n) d.in(type);
  d.done(type == Type::F64 ? float_handler<double>(op, round, false, false)
                           : float_handler<float>(op, round, ftz, sat));
}

void copysign(Decoder& d) {  // the sign of a, the magnitude of b
  const Type type = d.want_type({Type::F32, Type::F64});
  d.out(type);
  d.in(type);
  d.in(type);
  using U = uint32_t;
  using W = uint64_t;
  d.done(type == Type::F64 ? map2<W, W, [](W a, W b) { return (a & (1ull << 63)) | (b & INT64_MAX); }>
                           : map2<U, U, [](U a, U b) { return (a & 0x80000000) | (b & 0x7fffffff); }>);
}

enum Test { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <class T>
void testp_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  write_predicate(warp, i.r[0], mask, lanes_where([&](int lane) {
                    const int category = std::fpclassify(a[lane]);
                    switch (i.a) {
                      case kFinite: return category != FP_INFINITE && category != FP_NAN;
                      case kInfinite: return category == FP_INFINITE;
                      case kNumber: return category != FP_NAN;
                      case kNotANumber: return category == FP_NAN;
                      case kNormal: return category == FP_NORMAL || category == FP_ZERO;  // the manual counts zero in
                      default: return category == FP_SUBNORMAL;
                    }
                  }));
}

void testp(Decoder& d) {
  d.ins.a = uint8_t(d.want_one_of({"finite", "infinite", "number", "notanumber", "normal", "subnormal"}));
  const Type type = d.want_type({Type::F32, Type::F64});
  d.out(Type::Pred);
  d.in(type);
  d.done(type == Type::F64 ? testp_run<double> : testp_run<float>);
}
}  // namespace

void decode_float_arithmetic(Decoder& d) {
  const std::string& name = d.opcode();
  if (name == "add") return operation(d, kAdd);
  if (name == "sub") return operation(d, kSub);
  if (name == "mul") return operation(d, kMul);
  if (name == "mad" || name == "fma") return operation(d, kFma);
  if (name == "div") return decode_division(d);
  if (name == "min" || name == "max") return min_max(d);
  if (name == "abs" || name == "neg") return abs_neg(d);
  d.not_built("this of floats");
}

Handler float_operation(Type type, const std::string& name, Round round, bool ftz, bool sat) {
  const int op = name == "div" ? kDiv : name == "rcp" ? kRcp : name == "sqrt" ? kSqrt : kFma;
  return type == Type::F64 ? float_handler<double>(op, round, ftz, sat) : float_handler<float>(op, round, ftz, sat);
}

void add_float_opcodes(Opcodes& table) {
  table["fma"] = [](Decoder& d) {
    const Type type = d.last_type();
    type == Type::F32 || type == Type::F64 ? decode_float_arithmetic(d) : decode_half_arithmetic(d);
  };
  table["copysign"] = copysign;
  table["testp"] = testp;
}
}  // namespace soft
