// Integer instructions that join or take apart registers: carries, funnel shifts, byte permutes, three-way logic, dot
// products. PTX manual 9.7.1, 9.7.2 and 9.7.8.
#include <bit>

#include "exec.hpp"

namespace soft {
namespace {
// --- extended precision. The carry flag is a register of its own, r[last]; a predicate mask like any other.
// add: CC = carry out. sub: CC = borrow out, as the manual's text has it.
template <class T>
void add_carry(Warp& warp, const Instruction& i, uint32_t mask) {
  const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]);
  const uint32_t in = i.b ? warp.predicate(i.r[3]) : 0;
  T result[kLanes];
  uint32_t out = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const T bit = T(in >> lane & 1);
    const T sum = i.a ? T(a[lane] - b[lane]) : T(a[lane] + b[lane]);
    result[lane] = i.a ? T(sum - bit) : T(sum + bit);
    const bool first = i.a ? a[lane] < b[lane] : sum < a[lane];
    const bool second = i.a ? sum < bit : result[lane] < sum;
    out |= uint32_t(first || second) << lane;
  }
  blend(warp.reg<T>(i.r[0]), result, mask);
  if (i.c) write_predicate(warp, i.r[3], mask, out);
}

template <class T>
void mad_carry(Warp& warp, const Instruction& i, uint32_t mask) {
  using W = std::conditional_t<sizeof(T) == 8, unsigned __int128, uint64_t>;
  using S = std::conditional_t<sizeof(T) == 8, __int128, int64_t>;
  using ST = std::make_signed_t<T>;
  const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]), *c = warp.reg<T>(i.r[3]);
  const uint32_t in = i.b ? warp.predicate(i.r[4]) : 0;
  T result[kLanes];
  uint32_t out = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const W product = i.d ? W(S(ST(a[lane])) * S(ST(b[lane]))) : W(a[lane]) * W(b[lane]);
    const T part = i.a ? T(product >> (8 * sizeof(T))) : T(product);
    const W sum = W(part) + W(c[lane]) + W(in >> lane & 1);
    result[lane] = T(sum);
    out |= uint32_t(sum >> (8 * sizeof(T)) != 0) << lane;
  }
  blend(warp.reg<T>(i.r[0]), result, mask);
  if (i.c) write_predicate(warp, i.r[4], mask, out);
}

void carry_form(Decoder& d, bool subtract, bool carry_in, bool carry_out) {
  const Type type = d.want_type({Type::U32, Type::S32, Type::U64, Type::S64});
  if (width_of(type) == 8) d.need(43, 20);
  d.out(type);
  d.in(type);
  d.in(type);
  d.carry(carry_out, carry_in);
  d.ins.a = subtract;
  d.ins.b = carry_in;
  d.ins.c = carry_out;
  d.done(width_of(type) == 8 ? add_carry<uint64_t> : add_carry<uint32_t>);
}

void addc(Decoder& d) { carry_form(d, d.opcode() == "subc", true, d.take("cc")); }

void carry_mad_form(Decoder& d, bool high, bool carry_in, bool carry_out) {
  const Type type = d.want_type({Type::U32, Type::S32, Type::U64, Type::S64});
  d.out(type);
  d.in(type);
  d.in(type);
  d.in(type);
  d.carry(carry_out, carry_in);
  d.ins.a = high;
  d.ins.b = carry_in;
  d.ins.c = carry_out;
  d.ins.d = is_signed(type);
  d.done(width_of(type) == 8 ? mad_carry<uint64_t> : mad_carry<uint32_t>);
}

void madc(Decoder& d) {
  const bool high = d.want_one_of({"lo", "hi"}) == 1;
  carry_mad_form(d, high, true, d.take("cc"));
}

// --- funnel shifts of [b:a]
template <bool left, bool clamp>
uint32_t funnel(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t n = clamp ? (c < 32 ? c : 32) : c & 31;
  const uint64_t both = uint64_t(b) << 32 | a;
  return left ? uint32_t((both << n) >> 32) : uint32_t(both >> n);
}

void shf(Decoder& d) {
  const bool left = d.want_one_of({"r", "l"}) == 1;
  const bool clamp = d.want_one_of({"wrap", "clamp"}) == 1;
  d.want_type({Type::B32});
  d.out(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  d.in(Type::U32);
  using U = uint32_t;
  d.done(left ? (clamp ? map3<U, U, funnel<true, true>> : map3<U, U, funnel<true, false>>)
              : (clamp ? map3<U, U, funnel<false, true>> : map3<U, U, funnel<false, false>>));
}

// --- lop3: bit i of the result is the table's bit at index (a_i b_i c_i)
void lop3_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t *a = warp.reg<uint32_t>(i.r[1]), *b = warp.reg<uint32_t>(i.r[2]), *c = warp.reg<uint32_t>(i.r[3]);
  uint32_t term[8];
  for (int bit = 0; bit < 8; ++bit) term[bit] = (i.immediate >> bit & 1) ? ~0u : 0;
  for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int lane) {
    const uint32_t x = a[lane], y = b[lane], z = c[lane];
    return (term[0] & ~x & ~y & ~z) | (term[1] & ~x & ~y & z) | (term[2] & ~x & y & ~z) | (term[3] & ~x & y & z) |
           (term[4] & x & ~y & ~z) | (term[5] & x & ~y & z) | (term[6] & x & y & ~z) | (term[7] & x & y & z);
  });
}

void lop3(Decoder& d) {
  d.want_type({Type::B32});  // .and and .or, with a predicate result, are not built
  d.out(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  const int64_t table = d.integer();
  if (table < 0 || table > 255) d.refuse("the table of lop3 has eight bits");
  d.ins.immediate = table;
  d.done(lop3_run);
}

// --- prmt: each nibble of the selector picks a byte of {b, a}; its top bit replicates the byte's sign
uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int n = 0; n < 4; ++n) {
    const uint32_t pick = selector >> (4 * n) & 0xf;
    uint32_t byte = uint32_t(bytes >> (8 * (pick & 7)) & 0xff);
    if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * n);
  }
  return result;
}

enum PermuteMode { kForward4, kBackward4, kReplicate8, kEdgeLeft, kEdgeRight, kReplicate16 };
constexpr uint16_t kSelectors[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
                                       {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
                                       {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
template <int mode>
uint32_t permute_mode(uint32_t a, uint32_t b, uint32_t c) {
  return permute(a, b, kSelectors[mode][c & 3]);
}

void prmt(Decoder& d) {
  d.want_type({Type::B32});
  const int mode = d.take_one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  d.out(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  using U = uint32_t;
  switch (mode) {
    case kForward4: return d.done(map3<U, U, permute_mode<kForward4>>);
    case kBackward4: return d.done(map3<U, U, permute_mode<kBackward4>>);
    case kReplicate8: return d.done(map3<U, U, permute_mode<kReplicate8>>);
    case kEdgeLeft: return d.done(map3<U, U, permute_mode<kEdgeLeft>>);
    case kEdgeRight: return d.done(map3<U, U, permute_mode<kEdgeRight>>);
    case kReplicate16: return d.done(map3<U, U, permute_mode<kReplicate16>>);
    default: return d.done(map3<U, U, permute>);
  }
}

// --- dp4a: four byte products; dp2a: two products of 16-bit parts of a with the lower or upper bytes of b
void dot_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t *a = warp.reg<uint32_t>(i.r[1]), *b = warp.reg<uint32_t>(i.r[2]), *c = warp.reg<uint32_t>(i.r[3]);
  const auto part = [](uint32_t word, int at, int bits, bool is_signed_part) {
    const uint32_t raw = word >> at & ((1u << bits) - 1);
    return is_signed_part ? int32_t(raw << (32 - bits)) >> (32 - bits) : int32_t(raw);
  };
  const int n = i.count, a_bits = n == 4 ? 8 : 16;
  for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int lane) {
    uint32_t sum = c[lane];
    for (int k = 0; k < n; ++k) {
      sum += uint32_t(part(a[lane], k * a_bits, a_bits, i.a) * part(b[lane], (k + i.c) * 8, 8, i.b));
    }
    return sum;
  });
}

void dot(Decoder& d) {
  d.need(50, 61);
  d.ins.count = d.opcode() == "dp4a" ? 4 : 2;
  if (d.ins.count == 2 && d.want_one_of({"lo", "hi"}) == 1) d.ins.c = 2;
  const Type a = d.want_type({Type::U32, Type::S32}), b = d.want_type({Type::U32, Type::S32});
  d.ins.a = a == Type::S32;
  d.ins.b = b == Type::S32;
  const Type result = d.ins.a || d.ins.b ? Type::S32 : Type::U32;
  d.out(result);
  d.in(a);
  d.in(b);
  d.in(result);
  d.done(dot_run);
}

// --- bit field masks and sign extension from a width
template <bool clamp>
uint32_t field_mask(uint32_t a, uint32_t b) {
  if (!clamp) return ((b & 31) ? (1u << (b & 31)) - 1 : 0) << (a & 31);
  if (a >= 32 || b == 0) return 0;
  return (b >= 32 ? ~0u : (1u << b) - 1) << a;
}

void bmsk(Decoder& d) {
  d.need(76, 70);
  const bool clamp = d.want_one_of({"wrap", "clamp"}) == 1;
  d.want_type({Type::B32});
  d.out(Type::B32);
  d.in(Type::B32);
  d.in(Type::B32);
  d.done(clamp ? map2<uint32_t, uint32_t, field_mask<true>> : map2<uint32_t, uint32_t, field_mask<false>>);
}

template <bool clamp, bool is_signed_type>
uint32_t extend(uint32_t a, uint32_t b) {
  const uint32_t n = clamp ? (b < 32 ? b : 32) : b & 31;
  if (n == 0) return 0;
  const int unused = 32 - int(n);
  return is_signed_type ? uint32_t(int32_t(a << unused) >> unused) : a << unused >> unused;
}

void szext(Decoder& d) {
  d.need(76, 70);
  const bool clamp = d.want_one_of({"wrap", "clamp"}) == 1;
  const Type type = d.want_type({Type::U32, Type::S32});
  d.out(type);
  d.in(type);
  d.in(Type::U32);
  using U = uint32_t;
  d.done(type == Type::S32 ? (clamp ? map2<U, U, extend<true, true>> : map2<U, U, extend<false, true>>)
                           : (clamp ? map2<U, U, extend<true, false>> : map2<U, U, extend<false, false>>));
}
}  // namespace

void decode_carry(Decoder& d) {
  d.take("cc");
  carry_form(d, d.opcode() == "sub", false, true);
}

void decode_carry_mad(Decoder& d, int part) {
  if (part == 2) d.not_built("mad.wide.cc");
  d.take("cc");
  carry_mad_form(d, part == 1, false, true);
}

void add_wide_opcodes(Opcodes& table) {
  table["addc"] = table["subc"] = addc;
  table["madc"] = madc;
  table["shf"] = shf;
  table["lop3"] = lop3;
  table["prmt"] = prmt;
  table["dp4a"] = table["dp2a"] = dot;
  table["bmsk"] = bmsk;
  table["szext"] = szext;
}
}  // namespace soft
