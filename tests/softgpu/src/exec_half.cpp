// f16, f16x2, bf16 and bf16x2 arithmetic. PTX manual 9.7.4.
//
// A packed value is two elements of one lane; both go through the same scalar operation, in double with the result
// rounded once (float.hpp).
#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
enum Operation : uint8_t { kAdd, kSub, kMul, kFma, kMin, kMax, kAbs, kNeg };
enum Flags : uint8_t { kFlush = 1, kSaturate = 2, kRelu = 4, kNanWins = 8, kXorSign = 16 };

template <bool brain> double widen(uint16_t x) { return brain ? bf16_to_float(x) : half_to_float(x); }
template <bool brain> uint16_t narrow(double x) { return brain ? to_bf16(x) : to_half(x); }
template <bool brain> bool is_nan(uint16_t x) { return (x & 0x7fff) > (brain ? 0x7f80 : 0x7c00); }

template <bool brain>
uint16_t extreme(uint16_t a, uint16_t b, bool least, uint8_t flags) {
  const uint16_t sign = flags & kXorSign ? (a ^ b) & 0x8000 : 0;
  if (flags & kXorSign) {
    a &= 0x7fff;
    b &= 0x7fff;
  }
  uint16_t result;
  if (is_nan<brain>(a) || is_nan<brain>(b)) {
    if ((flags & kNanWins) || (is_nan<brain>(a) && is_nan<brain>(b))) return kNanHalf;
    result = is_nan<brain>(a) ? b : a;
  } else {
    const double x = widen<brain>(a), y = widen<brain>(b);
    if (x == y) {
      result = least ? a | b : a & b;  // -0 < +0
    } else {
      result = (x < y) == least ? a : b;
    }
  }
  return result | sign;
}

template <bool brain, int op>
uint16_t compute(uint16_t a, uint16_t b, uint16_t c, uint8_t flags) {
  if (!brain && (flags & kFlush)) {
    a = flush_half(a);
    b = flush_half(b);
    c = flush_half(c);
  }
  uint16_t result;
  switch (op) {
    case kAbs: return a & 0x7fff;
    case kNeg: return a ^ 0x8000;
    case kMin:
    case kMax: return extreme<brain>(a, b, op == kMin, flags);
    case kAdd: result = narrow<brain>(add_odd(widen<brain>(a), widen<brain>(b))); break;
    case kSub: result = narrow<brain>(add_odd(widen<brain>(a), -widen<brain>(b))); break;
    case kMul: result = narrow<brain>(widen<brain>(a) * widen<brain>(b)); break;
    default: result = narrow<brain>(add_odd(widen<brain>(a) * widen<brain>(b), widen<brain>(c))); break;
  }
  if (!brain && (flags & kFlush)) result = flush_half(result);
  const uint16_t one = brain ? 0x3f80 : 0x3c00;
  if (flags & kSaturate) {
    if (is_nan<brain>(result) || (result & 0x8000)) return 0;
    return result > one ? one : result;
  }
  if ((flags & kRelu) && (result & 0x8000)) return 0;  // NaN is canonical here: positive
  return result;
}

constexpr int sources(int op) { return op == kFma ? 3 : op >= kAbs ? 1 : 2; }

template <bool brain, int op>
void half_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint16_t* a = warp.reg<uint16_t>(i.r[1]);
  const uint16_t* b = sources(op) > 1 ? warp.reg<uint16_t>(i.r[2]) : a;
  const uint16_t* c = sources(op) > 2 ? warp.reg<uint16_t>(i.r[3]) : a;
  for_lanes(warp.reg<uint16_t>(i.r[0]), mask,
            [&](int lane) { return compute<brain, op>(a[lane], b[lane], c[lane], i.c); });
}

template <bool brain, int op>
void packed_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t* a = warp.reg<uint32_t>(i.r[1]);
  const uint32_t* b = sources(op) > 1 ? warp.reg<uint32_t>(i.r[2]) : a;
  const uint32_t* c = sources(op) > 2 ? warp.reg<uint32_t>(i.r[3]) : a;
  for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int lane) {
    const uint32_t x = a[lane], y = b[lane], z = c[lane];
    const uint32_t low = compute<brain, op>(uint16_t(x), uint16_t(y), uint16_t(z), i.c);
    return low | uint32_t(compute<brain, op>(uint16_t(x >> 16), uint16_t(y >> 16), uint16_t(z >> 16), i.c)) << 16;
  });
}

template <int op>
Handler handler(bool brain, bool packed) {
  return brain ? (packed ? packed_run<true, op> : half_run<true, op>)
               : (packed ? packed_run<false, op> : half_run<false, op>);
}
}  // namespace

uint32_t half_fma(bool brain, uint32_t a, uint32_t b, uint32_t c, uint8_t flags) {
  const auto element = [&](int shift) {
    const auto x = uint16_t(a >> shift), y = uint16_t(b >> shift), z = uint16_t(c >> shift);
    return uint32_t(brain ? compute<true, kFma>(x, y, z, flags) : compute<false, kFma>(x, y, z, flags)) << shift;
  };
  return element(0) | element(16);
}

void decode_half_arithmetic(Decoder& d) {
  const std::string& name = d.opcode();
  const Type last = d.last_type();
  const bool brain = last == Type::BF16 || last == Type::BF16x2;
  const bool packed = last == Type::F16x2 || last == Type::BF16x2;
  uint8_t flags = 0;
  int op = kAdd;
  if (name == "add" || name == "sub" || name == "mul" || name == "fma") {
    op = name == "add" ? kAdd : name == "sub" ? kSub : name == "mul" ? kMul : kFma;
    const bool rounded = d.take("rn");
    if (op == kFma && !rounded) d.refuse("fma needs .rn");
    d.ins.b = !rounded;
    if (brain) {
      op == kFma ? d.need(70, 80) : d.need(78, 90);
    } else {
      d.need(42, 53);
      if (d.take("ftz")) flags |= kFlush;
      if (d.take("sat")) flags |= kSaturate;
    }
    if (op == kFma && !(flags & kSaturate) && d.take("relu")) {
      d.need(70, 80);
      flags |= kRelu;
    }
    if (d.modifier() == "oob") d.not_built("fma.oob");
  } else if (name == "min" || name == "max") {
    op = name == "min" ? kMin : kMax;
    d.need(70, 80);
    if (!brain && d.take("ftz")) flags |= kFlush;
    if (d.take("NaN")) flags |= kNanWins;
    if (d.take("xorsign")) {
      d.need(72, 86);
      d.want_one_of({"abs"});
      flags |= kXorSign;
    }
  } else if (name == "abs" || name == "neg") {
    op = name == "abs" ? kAbs : kNeg;
    brain ? d.need(70, 80) : name == "abs" ? d.need(65, 53) : d.need(60, 53);
    if (!brain && d.take("ftz")) flags |= kFlush;
  } else {
    d.not_built("this of halves");
  }
  d.ins.c = flags;
  d.want_type({Type::F16, Type::F16x2, Type::BF16, Type::BF16x2});
  d.out(last);
  for (int n = 0; n < sources(op); ++n) d.in(last);
  switch (op) {
    case kAdd: return d.done(handler<kAdd>(brain, packed));
    case kSub: return d.done(handler<kSub>(brain, packed));
    case kMul: return d.done(handler<kMul>(brain, packed));
    case kFma: return d.done(handler<kFma>(brain, packed));
    case kMin: return d.done(handler<kMin>(brain, packed));
    case kMax: return d.done(handler<kMax>(brain, packed));
    case kAbs: return d.done(handler<kAbs>(brain, packed));
    default: return d.done(handler<kNeg>(brain, packed));
  }
}
}  // namespace soft
