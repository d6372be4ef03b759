// Rounding a double to any smaller format, in integers.
#include "float.hpp"

#include <algorithm>

namespace soft {
uint32_t round_to(Format format, double x, Round mode) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint32_t sign = uint32_t(bits >> 63);
  const int total = format.exponent_bits + format.mantissa_bits;
  const uint32_t sign_bit = sign << total;
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  const int exponent = int(bits >> 52 & 0x7ff);
  uint64_t mantissa = bits & ((1ull << 52) - 1);
  if (exponent == 0x7ff) return sign_bit | (mantissa ? infinity | 1u << (format.mantissa_bits - 1) : infinity);
  if (exponent == 0 && mantissa == 0) return sign_bit;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  int e = std::max(exponent, 1) - 1023;
  if (exponent) mantissa |= 1ull << 52;
  // Bits below the format's last place: more of them where the result is subnormal.
  int cut = 52 - format.mantissa_bits;
  int biased = e + bias;
  if (biased < 1) {
    cut += 1 - biased;
    biased = 0;
  } else {
    --biased;  // the implicit bit carries into the exponent below
  }
  uint64_t kept, rest, half;
  if (cut >= 64) {
    kept = 0;
    rest = mantissa != 0;
    half = 2;  // less than a half is all there can be
  } else {
    kept = mantissa >> cut;
    rest = mantissa & ((1ull << cut) - 1);
    half = 1ull << (cut - 1);
  }
  bool up = false;
  switch (mode) {
    case Round::Nearest: up = rest > half || (rest == half && (kept & 1)); break;
    case Round::NearestAway: up = rest >= half; break;
    case Round::Zero: break;
    case Round::Down: up = sign && rest; break;
    case Round::Up: up = !sign && rest; break;
  }
  const uint64_t result = (uint64_t(biased) << format.mantissa_bits) + kept + (up ? 1 : 0);
  if (result >= infinity) {
    const bool to_infinity = mode == Round::Nearest || mode == Round::NearestAway || (mode == Round::Up && !sign) ||
                             (mode == Round::Down && sign);
    return sign_bit | (to_infinity ? infinity : infinity - 1);
  }
  return sign_bit | uint32_t(result);
}

uint8_t round_to_fp8(bool e4m3, double x) {
  if (x != x) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double largest = e4m3 ? 448.0 : 57344.0;
  if (std::fabs(x) >= largest) return sign | (e4m3 ? 0x7e : 0x7b);
  if (!e4m3) return std::min<uint8_t>(uint8_t(round_to(kE5m2, std::fabs(x), Round::Nearest)), 0x7b) | sign;
  // The top exponent holds numbers too, so it is not an IEEE format: steps of 2^-9 below 2^-6, of an eighth above.
  const double magnitude = std::fabs(x);
  if (magnitude < 0x1p-6) return sign | uint8_t(std::nearbyint(magnitude * 0x1p9));
  int e = 0;
  std::frexp(magnitude, &e);
  const double steps = std::nearbyint(std::ldexp(magnitude, 4 - e));  // 8..16
  const int code = ((e - 1 + 7) << 3) + int(steps) - 8;
  return sign | uint8_t(std::min(code, 0x7e));
}

float fp8_to_float(bool e4m3, uint8_t x) {
  const float sign = x & 0x80 ? -1.0f : 1.0f;
  const int magnitude = x & 0x7f;
  if (!e4m3) return half_to_float(uint16_t(x << 8));
  if (magnitude == 0x7f) return std::bit_cast<float>(kNan32);
  const int exponent = magnitude >> 3, mantissa = magnitude & 7;
  return sign * (exponent ? std::ldexp(float(8 + mantissa), exponent - 10) : std::ldexp(float(mantissa), -9));
}
}  // namespace soft
