// Read-modify-write by type. See the header.
#include "memory_atomics.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace soft {
namespace {

template <class T>
T get(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void put(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

[[noreturn]] void refuse() { unsupported("an atomic operation that its type does not have"); }

template <class T>
T integer_result(AtomicOp op, T at, T a, T b) {
  using Unsigned = std::make_unsigned_t<T>;
  switch (op) {
    case AtomicOp::Add: return T(Unsigned(at) + Unsigned(a));
    case AtomicOp::Min: return a < at ? a : at;
    case AtomicOp::Max: return a > at ? a : at;
    case AtomicOp::And: return at & a;
    case AtomicOp::Or: return at | a;
    case AtomicOp::Xor: return at ^ a;
    case AtomicOp::Exch: return a;
    case AtomicOp::Cas: return at == a ? b : at;
    case AtomicOp::Inc: return Unsigned(at) >= Unsigned(a) ? 0 : T(at + 1);
    case AtomicOp::Dec: return at == 0 || Unsigned(at) > Unsigned(a) ? a : T(at - 1);
  }
  refuse();
}

template <class T>
void apply_integer(AtomicOp op, uint8_t* at, const uint8_t* a, const uint8_t* b) {
  put(at, integer_result(op, get<T>(at), get<T>(a), b ? get<T>(b) : T(0)));
}

float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

// A 16-bit float of `digits` significant bits whose least exponent (of a normal number) is `least`.
struct Format {
  int digits, exponent_bits;
  int least() const { return 2 - (1 << (exponent_bits - 1)); }
};
constexpr Format kHalf{11, 5}, kBrain{8, 8};

double widen(Format format, uint16_t bits) {
  const int fraction = format.digits - 1;
  const int exponent = bits >> fraction & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << fraction) - 1);
  double value;
  if (exponent == (1 << format.exponent_bits) - 1) {
    value = mantissa ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, format.least() - fraction);
  } else {
    value = std::ldexp(mantissa | 1 << fraction, exponent - 1 + format.least() - fraction);
  }
  return bits & 0x8000 ? -value : value;
}

// To nearest, ties to even. The sum of two values of either format is exact in a double, or differs from the larger
// one by less than could move the rounding.
uint16_t narrow(Format format, double value) {
  const int fraction = format.digits - 1;
  const int infinite = ((1 << format.exponent_bits) - 1) << fraction;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7FFF;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return uint16_t(sign | infinite);
  const int exponent = std::max(std::ilogb(magnitude), format.least());
  const double units = std::nearbyint(std::ldexp(magnitude, fraction - exponent));
  // A carry into the next exponent, and from subnormal to normal, falls out of adding the fields.
  const int bits = ((exponent - format.least()) << fraction) + int(units);
  return uint16_t(sign | std::min(bits, infinite));
}

void add_16(Format format, uint8_t* at, const uint8_t* a, int count) {
  for (int i = 0; i < count; ++i) {
    const double sum = widen(format, get<uint16_t>(at + 2 * i)) + widen(format, get<uint16_t>(a + 2 * i));
    put(at + 2 * i, narrow(format, sum));
  }
}

void apply_float(AtomicOp op, AtomicType type, uint8_t* at, const uint8_t* a, bool flush_subnormals) {
  if (op != AtomicOp::Add) refuse();
  switch (type) {
    case AtomicType::F16: return add_16(kHalf, at, a, 1);
    case AtomicType::F16x2: return add_16(kHalf, at, a, 2);
    case AtomicType::BF16: return add_16(kBrain, at, a, 1);
    case AtomicType::BF16x2: return add_16(kBrain, at, a, 2);
    case AtomicType::F64: return put(at, get<double>(at) + get<double>(a));
    default: break;
  }
  const float x = get<float>(at), y = get<float>(a);
  put(at, flush_subnormals ? flushed(flushed(x) + flushed(y)) : x + y);
}

}  // namespace

uint32_t width_of(AtomicType type) {
  switch (type) {
    case AtomicType::F16:
    case AtomicType::BF16: return 2;
    case AtomicType::U64:
    case AtomicType::S64:
    case AtomicType::B64:
    case AtomicType::F64: return 8;
    default: return 4;
  }
}

bool is_float(AtomicType type) { return type >= AtomicType::F16; }

void apply_atomic(AtomicOp op, AtomicType type, uint8_t* at, const uint8_t* a, const uint8_t* b, uint8_t* old,
                  bool flush_subnormals) {
  if (old) std::memcpy(old, at, width_of(type));
  switch (type) {
    case AtomicType::U32:
    case AtomicType::B32: return apply_integer<uint32_t>(op, at, a, b);
    case AtomicType::S32: return apply_integer<int32_t>(op, at, a, b);
    case AtomicType::U64:
    case AtomicType::B64: return apply_integer<uint64_t>(op, at, a, b);
    case AtomicType::S64: return apply_integer<int64_t>(op, at, a, b);
    default: return apply_float(op, type, at, a, flush_subnormals);
  }
}

}  // namespace soft
