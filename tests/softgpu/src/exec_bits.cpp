// Logic, shifts and bit fields, one value a lane: PTX manual 9.7.1 (popc to bfi) and 9.7.8.
#include <algorithm>
#include <bit>

#include "exec.hpp"

namespace soft {
namespace {
template <class T> using Unsigned = std::make_unsigned_t<T>;
template <class T> constexpr int kBits = int(sizeof(T)) * 8;

template <class T> struct And {
  static constexpr Handler run = map2<T, T, [](T a, T b) { return T(a & b); }>;
};
template <class T> struct Or {
  static constexpr Handler run = map2<T, T, [](T a, T b) { return T(a | b); }>;
};
template <class T> struct Xor {
  static constexpr Handler run = map2<T, T, [](T a, T b) { return T(a ^ b); }>;
};
template <class T> struct Not {
  static constexpr Handler run = map1<T, T, [](T a) { return T(~a); }>;
};
template <class T> struct Cnot {
  static constexpr Handler run = map1<T, T, [](T a) { return T(a == 0); }>;
};

template <class T> T shift_left(T a, uint32_t b) {
  return b >= uint32_t(kBits<T>) ? T(0) : T(a << (b & (kBits<T> - 1)));
}
template <class T> T shift_right(T a, uint32_t b) {  // of a signed one: the sign fills
  return T(a >> (b >= uint32_t(kBits<T>) ? kBits<T> - 1 : b)) &
         T(b >= uint32_t(kBits<T>) && std::is_unsigned_v<T> ? 0 : ~T(0));
}
template <class T> struct Shl {
  static constexpr Handler run = map_shift<T, shift_left<T>>;
};
template <class T> struct Shr {
  static constexpr Handler run = map_shift<T, shift_right<T>>;
};

template <class T> uint32_t ones(T a) { return uint32_t(std::popcount(a)); }
template <class T> uint32_t leading_zeros(T a) { return uint32_t(std::countl_zero(a)); }
template <class T> struct Popc {
  static constexpr Handler run = map1<uint32_t, T, ones<T>>;
};
template <class T> struct Clz {
  static constexpr Handler run = map1<uint32_t, T, leading_zeros<T>>;
};

template <class T> T reverse(T a) {
  T result = 0;
  for (int bit = 0; bit < kBits<T>; ++bit) result |= T(T(a >> bit & 1) << (kBits<T> - 1 - bit));
  return result;
}
template <class T> struct Brev {
  static constexpr Handler run = map1<T, T, reverse<T>>;
};

// The most significant bit that differs from the sign; ~0 where there is none.
template <class T, bool shift_amount> uint32_t find_bit(T a) {
  const Unsigned<T> u = Unsigned<T>(a < 0 ? T(~a) : a);
  if (u == 0) return ~0u;
  const uint32_t bit = uint32_t(kBits<T> - 1 - std::countl_zero(u));
  return shift_amount ? uint32_t(kBits<T> - 1) - bit : bit;
}
template <class T> struct Bfind {
  static constexpr Handler run = map1<uint32_t, T, find_bit<T, false>>;
};
template <class T> struct BfindShift {
  static constexpr Handler run = map1<uint32_t, T, find_bit<T, true>>;
};

template <class T> T extract(T a, uint32_t position, uint32_t length) {
  const uint32_t pos = position & 0xff, len = length & 0xff, msb = kBits<T> - 1;
  using U = Unsigned<T>;
  const bool sign = std::is_signed_v<T> && len > 0 && (U(a) >> std::min(pos + len - 1, msb) & 1);
  U result = pos <= msb ? U(U(a) >> pos) : U(0);
  const uint32_t taken = pos <= msb ? std::min(len, msb + 1 - pos) : 0;
  if (taken <= msb) {
    const U field = U((U(1) << taken) - 1);
    result = U((result & field) | (sign ? U(~field) : U(0)));
  }
  return T(result);
}
template <class T> void bit_extract(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  const uint32_t *b = warp.reg<uint32_t>(i.r[2]), *c = warp.reg<uint32_t>(i.r[3]);
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) { return extract<T>(a[lane], b[lane], c[lane]); });
}
template <class T> struct Bfe {
  static constexpr Handler run = bit_extract<T>;
};

template <class T> void bit_insert(Warp& warp, const Instruction& i, uint32_t mask) {
  const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]);
  const uint32_t *c = warp.reg<uint32_t>(i.r[3]), *d = warp.reg<uint32_t>(i.r[4]);
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) {
    const uint32_t pos = c[lane] & 0xff, len = d[lane] & 0xff;
    if (pos >= uint32_t(kBits<T>) || len == 0) return b[lane];
    const T field = T(len >= uint32_t(kBits<T>) ? ~T(0) : T((T(1) << len) - 1)) << pos;
    return T((b[lane] & ~field) | (T(a[lane] << pos) & field));
  });
}
template <class T> struct Bfi {
  static constexpr Handler run = bit_insert<T>;
};

constexpr auto kAnyBits = {Type::B16, Type::B32, Type::B64};

template <auto F>
void predicate_operation(Warp& warp, const Instruction& i, uint32_t mask) {
  write_predicate(warp, i.r[0], mask,
                  F(read_predicate(warp, i.r[1], i.a), i.b == 2 ? 0 : read_predicate(warp, i.r[2], i.b)));
}

void logic(Decoder& d) {
  const std::string& name = d.opcode();
  const Type type = d.want_type({Type::Pred, Type::B16, Type::B32, Type::B64});
  if (type == Type::Pred) {
    bool a = false, b = false;
    d.out(type);
    d.in_predicate(&a);
    d.ins.b = 2;
    if (name != "not") {
      d.in_predicate(&b);
      d.ins.b = b;
    }
    d.ins.a = a;
    using U = uint32_t;
    return d.done(name == "and"   ? predicate_operation<[](U x, U y) { return x & y; }>
                  : name == "or"  ? predicate_operation<[](U x, U y) { return x | y; }>
                  : name == "xor" ? predicate_operation<[](U x, U y) { return x ^ y; }>
                                  : predicate_operation<[](U x, U) { return ~x; }>);
  }
  d.out(type);
  d.in(type);
  if (name == "not") return d.done(by_bits_type<Not>(type));
  d.in(type);
  d.done(name == "and" ? by_bits_type<And>(type) : name == "or" ? by_bits_type<Or>(type) : by_bits_type<Xor>(type));
}

void cnot(Decoder& d) {
  const Type type = d.want_type(kAnyBits);
  d.out(type);
  d.in(type);
  d.done(by_bits_type<Cnot>(type));
}

void shift(Decoder& d) {
  const bool left = d.opcode() == "shl";
  const Type type = left ? d.want_type(kAnyBits)
                         : d.want_type({Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16,
                                        Type::S32, Type::S64});
  d.out(type);
  d.in(type);
  d.in(Type::U32);
  d.done(left ? by_bits_type<Shl>(type) : is_signed(type) ? by_integer_type<Shr>(type) : by_bits_type<Shr>(type));
}

void count_bits(Decoder& d) {
  const Type type = d.want_type({Type::B32, Type::B64});
  d.out(Type::U32);
  d.in(type);
  const bool wide = type == Type::B64;
  d.done(d.opcode() == "popc" ? (wide ? Popc<uint64_t>::run : Popc<uint32_t>::run)
                              : (wide ? Clz<uint64_t>::run : Clz<uint32_t>::run));
}

void brev(Decoder& d) {
  const Type type = d.want_type({Type::B32, Type::B64});
  d.out(type);
  d.in(type);
  d.done(type == Type::B64 ? Brev<uint64_t>::run : Brev<uint32_t>::run);
}

void bfind(Decoder& d) {
  const bool shift_amount = d.take("shiftamt");
  const Type type = d.want_type({Type::U32, Type::U64, Type::S32, Type::S64});
  d.out(Type::U32);
  d.in(type);
  d.done(shift_amount ? by_integer_type<BfindShift>(type) : by_integer_type<Bfind>(type));
}

void bfe(Decoder& d) {
  const Type type = d.want_type({Type::U32, Type::U64, Type::S32, Type::S64});
  d.out(type);
  d.in(type);
  d.in(Type::U32);
  d.in(Type::U32);
  d.done(by_integer_type<Bfe>(type));
}

void bfi(Decoder& d) {
  const Type type = d.want_type({Type::B32, Type::B64});
  d.out(type);
  d.in(type);
  d.in(type);
  d.in(Type::U32);
  d.in(Type::U32);
  d.done(type == Type::B64 ? Bfi<uint64_t>::run : Bfi<uint32_t>::run);
}
}  // namespace

void add_bit_opcodes(Opcodes& table) {
  table["and"] = table["or"] = table["xor"] = table["not"] = logic;
  table["cnot"] = cnot;
  table["shl"] = table["shr"] = shift;
  table["popc"] = table["clz"] = count_bits;
  table["brev"] = brev;
  table["bfind"] = bfind;
  table["bfe"] = bfe;
  table["bfi"] = bfi;
}
}  // namespace soft
