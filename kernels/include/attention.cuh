// Paged K/V as attention reads them: the split of a context, predicated loads, page formats; and softmax's functions.
//
// Kept apart from the kernels because decode and combine must agree on the split, and because a page format is the
// only thing that differs between half-precision and fp8 pages.
#pragma once
#include "mma.cuh"
#include "types.cuh"

constexpr int kPageTokens = 16;
constexpr int kUnitTokens = 256;  // a split is whole units, counted from position 0
constexpr int kMaxSplits = 64;    // of one sequence

inline int divide_up(int a, int b) { return (a + b - 1) / b; }

// How the context of one sequence is cut. It follows from the sequence alone, so that a result does not depend on
// what else is in the batch: one unit a split up to 64 units (16,384 tokens), beyond that equal numbers of units.
//
//   position  0       256      512      768            length
//   unit      |   0    |   1    |   2    |   3    |   4  :
//   seen               . . |====|========|========|======|        (window)
//   split                  | 0  |   1    |   2    |   3  |
struct Splits {
  int seen_from;   // first position that the query sees
  int length;
  int first_unit;
  int units_each;
  int count;       // 0 where the sequence is empty

  Splits(int length, int window) : length(length) {
    seen_from = window > 0 && length > window ? length - window : 0;
    first_unit = seen_from / kUnitTokens;
    const int units = divide_up(length, kUnitTokens) - first_unit;
    units_each = max(divide_up(units, kMaxSplits), 1);
    count = divide_up(units, units_each);
  }

  // The positions of a split; they are offsets into the page table too, hence 64 bits.
  i64 from(int split) const { return max((first_unit + i64(split) * units_each) * kUnitTokens, i64(seen_from)); }
  i64 to(int split) const { return min((first_unit + i64(split + 1) * units_each) * kUnitTokens, i64(length)); }
};

// kWords 32-bit words that nothing writes during the launch and this block reads once, past the L1 cache. Where
// `token` is not under `seen` nothing is read, and the words stay as they are.
template <int kWords>
inline void load_seen(u32* to, const void* from, u32 token, u32 seen) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4, "a load is 4, 8 or 16 bytes wide");
  if constexpr (kWords == 4) {
    asm volatile(
        "{.reg .pred seen; setp.lt.u32 seen, %5, %6;\n\t"
        "@seen ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(from), "r"(token), "r"(seen));
  } else if constexpr (kWords == 2) {
    asm volatile(
        "{.reg .pred seen; setp.lt.u32 seen, %3, %4;\n\t"
        "@seen ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];}"
        : "+r"(to[0]), "+r"(to[1])
        : "l"(from), "r"(token), "r"(seen));
  } else {
    asm volatile(
        "{.reg .pred seen; setp.lt.u32 seen, %2, %3;\n\t"
        "@seen ld.global.nc.L1::no_allocate.u32 %0, [%1];}"
        : "+r"(to[0])
        : "l"(from), "r"(token), "r"(seen));
  }
}

// --- page formats ------------------------------------------------------------------------------------------------
//
// `pair` gives elements 2i, 2i+1 of one token's words, for K; `across` element i of two tokens' words, for V. Both
// give T's pairs. A stored element is worth kUnit times what they give.

// Elements of the activations' own type.
template <typename T>
struct HalfPages {
  static constexpr int kBytes = 2;
  static constexpr float kUnit = 1.0f;

  static u32 pair(const u32* words, int i) { return words[i]; }
  static u32 across(const u32* even, const u32* odd, int i) {
    return __byte_perm(even[i / 2], odd[i / 2], i % 2 ? 0x7632 : 0x5410);
  }
};

// `decode`: e4m3 in bytes 1 and 3 of a word as T's pair; bytes 0 and 2 do not matter. Exponent and mantissa are moved
// to where T has them, beside the sign, which leaves T's larger exponent bias to be made up for; subnormals come out
// right too. A code for NaN is read as 480: what writes pages saturates.
template <typename T>
struct Fp8Pages;

template <>
struct Fp8Pages<F16> {
  static constexpr int kBytes = 1;
  static constexpr float kUnit = 256.0f;  // the biases are 15 and 7; e4m3's range times 2^-8 is exact in float16

  static u32 decode(u32 bytes) { return (bytes & 0x80008000u) | ((bytes >> 1) & 0x3f803f80u); }
  static u32 pair(const u32* words, int i) { return decode(__byte_perm(words[i / 2], 0, i % 2 ? 0x3020 : 0x1000)); }
  static u32 across(const u32* even, const u32* odd, int i) {
    return decode(__byte_perm(even[i / 4], odd[i / 4], (4 + i % 4) << 12 | (i % 4) << 4));
  }
};

template <>
struct Fp8Pages<Bf16> {
  static constexpr int kBytes = 1;
  static constexpr float kUnit = 1.0f;

  static u32 decode(u32 bytes) {
    const u32 small = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07f007f0u);
    u32 pair;  // times 2^120 for the biases 127 and 7; the product of -0 and the addend -0 keeps its sign
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(small), "r"(0x7b807b80u), "r"(0x80008000u));
    return pair;
  }
  static u32 pair(const u32* words, int i) { return decode(__byte_perm(words[i / 2], 0, i % 2 ? 0x3020 : 0x1000)); }
  static u32 across(const u32* even, const u32* odd, int i) {
    return decode(__byte_perm(even[i / 4], odd[i / 4], (4 + i % 4) << 12 | (i % 4) << 4));
  }
};

// --- softmax -----------------------------------------------------------------------------------------------------

// 2^x; 0 at -infinity.
inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline float minus_infinity() { return __uint_as_float(0xff800000u); }

// A maximum as what exponents are relative to: 0 where nothing was seen, so that 2^(-inf - it) is 0 and not NaN.
inline float reference(float maximum) { return maximum == minus_infinity() ? 0.0f : maximum; }
