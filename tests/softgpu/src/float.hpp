// Floating-point formats and exact rounding between them.
//
// Arithmetic of small formats is done in a wider one whose rounding cannot show: where the wide result may be inexact
// it is rounded to odd (the lowest bit tells that something was cut off), so that rounding once more is right in any
// mode.
#pragma once
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace soft {

enum class Round : uint8_t { Nearest, Zero, Down, Up, NearestAway };  // .rn .rz .rm .rp .rna

constexpr uint32_t kNan32 = 0x7fffffff;
constexpr uint16_t kNanHalf = 0x7fff;

inline bool is_subnormal(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7fffffff;
  return magnitude != 0 && magnitude < 0x00800000;
}
// Subnormals to zero of their sign.
inline float flush(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}
inline uint16_t flush_half(uint16_t x) { return (x & 0x7c00) == 0 ? x & 0x8000 : x; }
// NVIDIA's arithmetic gives one NaN.
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(kNan32); }
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // NaN and -0 become +0
inline double saturate(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }

inline float bf16_to_float(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }
inline float half_to_float(uint16_t x) {
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x)));
#else
  const uint32_t sign = uint32_t(x & 0x8000) << 16, magnitude = x & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
  const float tiny = float(magnitude) * 0x1p-24f;
  return sign ? -tiny : tiny;
#endif
}

struct Format {
  int exponent_bits, mantissa_bits;
};
constexpr Format kHalf16{5, 10}, kBrain16{8, 7}, kSingle{8, 23}, kTensor32{8, 10}, kE4m3{4, 3}, kE5m2{5, 2};

// The bits of x in an IEEE-like format, without special treatment of e4m3 (float.cpp has that). NaN is the caller's.
uint32_t round_to(Format format, double x, Round mode);
// e4m3 (no infinity, NaN is 0x7f, largest 448) and e5m2, with .satfinite: out of range becomes the largest, NaN
// stays.
uint8_t round_to_fp8(bool e4m3, double x);
float fp8_to_float(bool e4m3, uint8_t x);

inline uint16_t to_half(double x, Round mode = Round::Nearest) {
  return x == x ? uint16_t(round_to(kHalf16, x, mode)) : kNanHalf;
}
inline uint16_t to_bf16(double x, Round mode = Round::Nearest) {
  return x == x ? uint16_t(round_to(kBrain16, x, mode)) : kNanHalf;
}
inline uint16_t float_to_bf16(float x) {  // to nearest
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? uint16_t(rounded) : kNanHalf;
}
inline uint16_t float_to_half(float x) {  // to nearest
#if defined(__F16C__)
  const uint16_t bits = uint16_t(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
  return x == x ? bits : kNanHalf;
#else
  return to_half(double(x));
#endif
}

// a + b in double, rounded to odd.
inline double add_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double virtual_b = sum - a;
  const double error = (a - (sum - virtual_b)) + (b - virtual_b);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

// Sets the processor's rounding for a stretch of code. The fences keep the compiler from moving arithmetic over it,
// so operands must come from memory and results go there.
class Rounding {
 public:
  explicit Rounding(Round mode) {
    static constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
    asm volatile("" ::: "memory");
    std::fesetround(kModes[int(mode)]);
    asm volatile("" ::: "memory");
  }
  ~Rounding() {
    asm volatile("" ::: "memory");
    std::fesetround(FE_TONEAREST);
    asm volatile("" ::: "memory");
  }
};
}  // namespace soft
