// Integer arithmetic, one value a lane: PTX manual 9.7.1. The 16-bit cases compute in int and narrow.
#include <algorithm>
#include <limits>

#include "exec.hpp"

namespace soft {
namespace {
template <class T> constexpr int kBits = int(sizeof(T)) * 8;

// Wrapping arithmetic: in an unsigned type that no promotion makes signed.
template <class T> using Wrapping = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <class T> T add(T a, T b) { return T(Wrapping<T>(a) + Wrapping<T>(b)); }
template <class T> T sub(T a, T b) { return T(Wrapping<T>(a) - Wrapping<T>(b)); }
template <class T> T mul_lo(T a, T b) { return T(Wrapping<T>(a) * Wrapping<T>(b)); }
template <class T> T mul_hi(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    using W = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return T((W(a) * W(b)) >> 64);
  } else {
    using W = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return T((W(a) * W(b)) >> kBits<T>);
  }
}
int32_t saturate(int64_t x) { return int32_t(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); }

// Division by zero yields all ones, and its remainder the dividend, as the hardware's routine gives; the manual
// leaves both unspecified. INT_MIN / -1 wraps.
template <class T> T divide(T a, T b) {
  if (b == 0) return T(~T(0));
  if constexpr (std::is_signed_v<T>) {
    if (b == T(-1)) return sub<T>(0, a);
  }
  return T(a / b);
}
template <class T> T remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == T(-1)) return 0;
  }
  return T(a % b);
}
template <class T> T absolute(T a) { return a < 0 ? sub<T>(0, a) : a; }
template <class T> T difference(T a, T b, T c) { return add<T>(c, a < b ? sub<T>(b, a) : sub<T>(a, b)); }

template <class T> struct Add {
  static constexpr Handler run = map2<T, T, add<T>>;
};
template <class T> struct Sub {
  static constexpr Handler run = map2<T, T, sub<T>>;
};
template <class T> struct MulLo {
  static constexpr Handler run = map2<T, T, mul_lo<T>>;
};
template <class T> struct MulHi {
  static constexpr Handler run = map2<T, T, mul_hi<T>>;
};
template <class T> struct MadLo {
  static constexpr Handler run = map3<T, T, [](T a, T b, T c) { return add<T>(mul_lo<T>(a, b), c); }>;
};
template <class T> struct MadHi {
  static constexpr Handler run = map3<T, T, [](T a, T b, T c) { return add<T>(mul_hi<T>(a, b), c); }>;
};
template <class T> struct Div {
  static constexpr Handler run = map2<T, T, divide<T>>;
};
template <class T> struct Rem {
  static constexpr Handler run = map2<T, T, remainder<T>>;
};
template <class T> struct Min {
  static constexpr Handler run = map2<T, T, [](T a, T b) { return b < a ? b : a; }>;
};
template <class T> struct Max {
  static constexpr Handler run = map2<T, T, [](T a, T b) { return a < b ? b : a; }>;
};
template <class T> struct Abs {
  static constexpr Handler run = map1<T, T, absolute<T>>;
};
template <class T> struct Neg {
  static constexpr Handler run = map1<T, T, [](T a) { return sub<T>(0, a); }>;
};
template <class T> struct Sad {
  static constexpr Handler run = map3<T, T, difference<T>>;
};

constexpr auto kIntegers = {Type::U16, Type::U32, Type::U64, Type::S16, Type::S32, Type::S64};
constexpr auto kSigned = {Type::S16, Type::S32, Type::S64};

bool float_form(const Decoder& d) { return is_float(d.last_type()); }
bool half_form(const Decoder& d) {
  const Type type = d.last_type();
  return type == Type::F16 || type == Type::F16x2 || type == Type::BF16 || type == Type::BF16x2;
}
bool decoded_as_float(Decoder& d) {
  if (!float_form(d)) return false;
  half_form(d) ? decode_half_arithmetic(d) : decode_float_arithmetic(d);
  return true;
}

void binary(Decoder& d, Type type, Handler handler) {
  d.out(type);
  d.in(type);
  d.in(type);
  d.done(handler);
}

void add_sub(Decoder& d) {
  if (decoded_as_float(d)) return;
  const bool subtract = d.opcode() == "sub";
  if (d.modifier() == "cc") return decode_carry(d);
  if (d.take("sat")) {
    d.want_type({Type::S32});
    return binary(d, Type::S32,
                  subtract ? map2<int32_t, int32_t, [](int32_t a, int32_t b) { return saturate(int64_t(a) - b); }>
                           : map2<int32_t, int32_t, [](int32_t a, int32_t b) { return saturate(int64_t(a) + b); }>);
  }
  const Type type = d.want_type(kIntegers);
  binary(d, type, subtract ? by_integer_type<Sub>(type) : by_integer_type<Add>(type));
}

Type doubled(Type type) {
  switch (type) {
    case Type::U16: return Type::U32;
    case Type::S16: return Type::S32;
    case Type::U32: return Type::U64;
    default: return Type::S64;
  }
}

void mul(Decoder& d) {
  if (decoded_as_float(d)) return;
  const int part = d.want_one_of({"lo", "hi", "wide"});
  if (part < 2) {
    const Type type = d.want_type(kIntegers);
    return binary(d, type, part == 0 ? by_integer_type<MulLo>(type) : by_integer_type<MulHi>(type));
  }
  const Type type = d.want_type({Type::U16, Type::U32, Type::S16, Type::S32});
  d.out(doubled(type));
  d.in(type);
  d.in(type);
  d.done(type == Type::U16   ? mul_wide<uint32_t, uint16_t>
         : type == Type::S16 ? mul_wide<int32_t, int16_t>
         : type == Type::U32 ? mul_wide<uint64_t, uint32_t>
                             : mul_wide<int64_t, int32_t>);
}

void mad(Decoder& d) {
  if (decoded_as_float(d)) return;
  const int part = d.want_one_of({"lo", "hi", "wide"});
  if (d.modifier() == "cc") return decode_carry_mad(d, part);
  const bool sat = part == 1 && d.take("sat");
  const Type type = sat        ? d.want_type({Type::S32})
                    : part < 2 ? d.want_type(kIntegers)
                               : d.want_type({Type::U16, Type::U32, Type::S16, Type::S32});
  const Type wide = part == 2 ? doubled(type) : type;
  d.out(wide);
  d.in(type);
  d.in(type);
  d.in(wide);
  if (part == 0) return d.done(by_integer_type<MadLo>(type));
  if (sat) {
    return d.done(map3<int32_t, int32_t,
                       [](int32_t a, int32_t b, int32_t c) { return saturate(int64_t(mul_hi<int32_t>(a, b)) + c); }>);
  }
  if (part == 1) return d.done(by_integer_type<MadHi>(type));
  d.done(type == Type::U16   ? mad_wide<uint32_t, uint16_t>
         : type == Type::S16 ? mad_wide<int32_t, int16_t>
         : type == Type::U32 ? mad_wide<uint64_t, uint32_t>
                             : mad_wide<int64_t, int32_t>);
}

// 24-bit operands: the upper byte of each is ignored; lo and hi are the two lower and upper 32 bits of the 48-bit
// product.
template <bool is_signed_type, bool high>
uint32_t product24(uint32_t a, uint32_t b) {
  const int64_t x = is_signed_type ? int64_t(int32_t(a << 8) >> 8) : int64_t(a & 0xffffff);
  const int64_t y = is_signed_type ? int64_t(int32_t(b << 8) >> 8) : int64_t(b & 0xffffff);
  return uint32_t((x * y) >> (high ? 16 : 0));
}
template <bool s, bool high> uint32_t mad24_of(uint32_t a, uint32_t b, uint32_t c) {
  return product24<s, high>(a, b) + c;
}

void mul24(Decoder& d) {
  const bool with_add = d.opcode() == "mad24";
  const bool high = d.want_one_of({"hi", "lo"}) == 0;
  const bool sat = with_add && high && d.take("sat");
  const Type type = sat ? d.want_type({Type::S32}) : d.want_type({Type::U32, Type::S32});
  d.out(type);
  d.in(type);
  d.in(type);
  if (with_add) d.in(type);
  const bool s = type == Type::S32;
  if (sat) {
    return d.done(map3<int32_t, int32_t, [](int32_t a, int32_t b, int32_t c) {
      return saturate(int64_t(int32_t(product24<true, true>(uint32_t(a), uint32_t(b)))) + c);
    }>);
  }
  using U = uint32_t;
  if (with_add) {
    return d.done(high ? (s ? map3<U, U, mad24_of<true, true>> : map3<U, U, mad24_of<false, true>>)
                       : (s ? map3<U, U, mad24_of<true, false>> : map3<U, U, mad24_of<false, false>>));
  }
  d.done(high ? (s ? map2<U, U, product24<true, true>> : map2<U, U, product24<false, true>>)
              : (s ? map2<U, U, product24<true, false>> : map2<U, U, product24<false, false>>));
}

void div_rem(Decoder& d) {
  if (decoded_as_float(d)) return;
  const Type type = d.want_type(kIntegers);
  binary(d, type, d.opcode() == "div" ? by_integer_type<Div>(type) : by_integer_type<Rem>(type));
}

void min_max(Decoder& d) {
  if (decoded_as_float(d)) return;
  const bool least = d.opcode() == "min";
  if (d.take("relu")) {
    d.need(80, 90);
    d.want_type({Type::S32});
    using S = int32_t;
    return binary(d, Type::S32,
                  least ? map2<S, S, [](S a, S b) { return std::max(0, std::min(a, b)); }>
                        : map2<S, S, [](S a, S b) { return std::max(0, std::max(a, b)); }>);
  }
  const Type type = d.want_type(kIntegers);
  binary(d, type, least ? by_integer_type<Min>(type) : by_integer_type<Max>(type));
}

void abs_neg(Decoder& d) {
  if (decoded_as_float(d)) return;
  const Type type = d.want_type(kSigned);
  d.out(type);
  d.in(type);
  d.done(d.opcode() == "abs" ? by_integer_type<Abs>(type) : by_integer_type<Neg>(type));
}

void sad(Decoder& d) {
  const Type type = d.want_type(kIntegers);
  d.out(type);
  d.in(type);
  d.in(type);
  d.in(type);
  d.done(by_integer_type<Sad>(type));
}

}  // namespace

void add_integer_opcodes(Opcodes& table) {
  table["add"] = table["sub"] = add_sub;
  table["mul"] = mul;
  table["mad"] = mad;
  table["mul24"] = table["mad24"] = mul24;
  table["div"] = table["rem"] = div_rem;
  table["min"] = table["max"] = min_max;
  table["abs"] = table["neg"] = abs_neg;
  table["sad"] = sad;
}
}  // namespace soft
