// Number formats: bfloat16, float16 and fp8 (e4m3) as plain bits, their conversions, and vectors of 16 bytes.
//
// Kept apart so that kernels are written once over a half-precision type `T` (Bf16 or F16), and so that the conversions
// are the same instructions on every architecture: one sm_80 PTX serves all, so fp8 is made by integer arithmetic.
//
// A `pair` is a 32-bit register of two halves, the lower index in the low half. A `Vec` is four pairs, a `Quad` two.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

constexpr int kWarp = 32;

struct alignas(16) Vec {
  u32 pair[4];
};

struct alignas(8) Quad {
  u32 pair[2];
};

struct Bf16 {
  u16 bits;

  static float low(u32 pair) { return __uint_as_float(pair << 16); }
  static float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
  static u32 pack(float low, float high) {  // rounds to nearest even
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static float widen(Bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
  static Bf16 round(float x) { return Bf16{u16(pack(x, 0.0f))}; }
};

struct F16 {
  u16 bits;

  static float low(u32 pair) { return widen(F16{u16(pair)}); }
  static float high(u32 pair) { return widen(F16{u16(pair >> 16)}); }
  static u32 pack(float low, float high) {  // rounds to nearest even; beyond 65504 gives infinity
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
  static float widen(F16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
  }
  static F16 round(float x) {
    F16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
    return half;
  }
};

template <typename T>
inline void unpack(const Vec& vec, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = T::low(vec.pair[i]);
    out[2 * i + 1] = T::high(vec.pair[i]);
  }
}

template <typename T>
inline Vec pack(const float (&in)[8]) {
  Vec vec;
#pragma unroll
  for (int i = 0; i < 4; ++i) vec.pair[i] = T::pack(in[2 * i], in[2 * i + 1]);
  return vec;
}

// fp8 e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f and 0xff are NaN, 448 the largest.

// Rounds to nearest even; magnitudes beyond 448, infinities too, become 448; NaN stays NaN.
inline u8 e4m3_round(float x) {
  const u32 bits = __float_as_uint(x);
  const u32 sign = (bits >> 24) & 0x80u;
  const u32 magnitude = bits & 0x7fffffffu;
  u32 code;
  if (magnitude > 0x7f800000u) {
    code = 0x7f;
  } else if (magnitude >= 0x43e00000u) {  // 448
    code = 0x7e;
  } else if (magnitude < 0x3c800000u) {
    // Below 2^-6 steps are 2^-9, which is the last place of 2^14: the sum rounds there.
    code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0f)) - 0x46800000u;
  } else {
    const u32 rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);  // 20 of the 23 bits of mantissa go
    code = (rounded - (120u << 23)) >> 20;                                // exponent bias 127 to 7
  }
  return u8(sign | code);
}
