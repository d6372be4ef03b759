// mma.sync: D = A * B + C over a warp's registers. PTX manual 9.7.14.5.
//
//   A: 16 x K, row major         lane = 4 * g + t, g = 0..7, t = 0..3; a register holds n = 4 / width elements
//     register r, element i:     row g + 8 * (r & 1), column n * t + i + 4 * n * (r >> 1)
//   B: K x 8, column major       register r, element i: row n * t + i + 4 * n * r, column g
//   C, D: 16 x 8                 register r (32 bits): row g + 8 * (r >> 1), column 2 * t + (r & 1)
//                                of f16, two a register: row g + 8 * r, columns 2 * t and 2 * t + 1
//
// How a tensor core adds (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"; Li et al. 2024, "FTTN"): the
// exact products of 8 (A100) or 16 (H100) columns and the accumulator are aligned to the largest exponent, truncated
// to a few bits more than fp32 has, added, and the sum truncated to fp32. Here the seed draws the group, the extra
// bits and which columns form a group; without jitter the sum is exact and rounded once.
#include <algorithm>

#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
constexpr int kRows = 16, kColumns = 8, kMaxDepth = 32;
enum Element : uint8_t { kF16, kBf16, kTf32, kE4m3, kE5m2, kS8, kU8 };
constexpr int kWidths[] = {2, 2, 4, 1, 1, 1, 1};

struct Layout {  // of Instruction's fields: a, b the elements; count the depth; c: 1 C in f16, 2 D in f16, 4
                 // satfinite
  int a_registers, b_registers, c_registers, d_registers;
};

Layout layout_of(const Instruction& i) {
  const int width = kWidths[i.a], a = kRows * i.count * width / 128;
  return {a, a / 2, i.c & 1 ? 2 : 4, i.c & 2 ? 2 : 4};
}

// One element of a register as a float, exact in every format.
template <int element>
float element_of(uint32_t word, int n) {
  switch (element) {
    case kF16: return half_to_float(uint16_t(word >> (16 * n)));
    case kBf16: return bf16_to_float(uint16_t(word >> (16 * n)));
    case kTf32: return std::bit_cast<float>(word & 0xffffe000);  // the lower 13 bits are ignored
    case kE4m3: return fp8_to_float(true, uint8_t(word >> (8 * n)));
    default: return fp8_to_float(false, uint8_t(word >> (8 * n)));
  }
}

// The elements of one register of every lane: values[e][lane].
template <int element>
void read_elements(const uint32_t* words, float values[][kLanes]) {
  for (int e = 0; e < 4 / kWidths[element]; ++e)
    SOFT_LANES
      values[e][lane] = element_of<element>(words[lane], e);
}

template <int element>
void read_a(const Warp& warp, const int32_t* r, int registers, double a[][kMaxDepth]) {
  constexpr int n = 4 / kWidths[element];
  for (int reg = 0; reg < registers; ++reg) {
    float values[n][kLanes];
    read_elements<element>(warp.reg<uint32_t>(r[reg]), values);
    for (int lane = 0; lane < kLanes; ++lane) {
      double* to = a[(lane >> 2) + 8 * (reg & 1)] + n * (lane & 3) + 4 * n * (reg >> 1);
      for (int e = 0; e < n; ++e) to[e] = double(values[e][lane]);
    }
  }
}

template <int element>
void read_b(const Warp& warp, const int32_t* r, int registers, double b[][kColumns]) {
  constexpr int n = 4 / kWidths[element];
  for (int reg = 0; reg < registers; ++reg) {
    float values[n][kLanes];
    read_elements<element>(warp.reg<uint32_t>(r[reg]), values);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int e = 0; e < n; ++e) b[n * (lane & 3) + e + 4 * n * reg][lane >> 2] = double(values[e][lane]);
    }
  }
}

void read_floats(Element element, const Warp& warp, const int32_t* r, int registers, double a[][kMaxDepth],
                 double b[][kColumns]) {
  const auto read = [&]<int e>() {
    if (a)
      read_a<e>(warp, r, registers, a);
    else
      read_b<e>(warp, r, registers, b);
  };
  switch (element) {
    case kF16: return read.operator()<kF16>();
    case kBf16: return read.operator()<kBf16>();
    case kTf32: return read.operator()<kTf32>();
    case kE4m3: return read.operator()<kE4m3>();
    default: return read.operator()<kE5m2>();
  }
}

void read_c(const Warp& warp, const int32_t* r, bool half, double c[][kColumns]) {
  for (int reg = 0; reg < (half ? 2 : 4); ++reg) {
    const uint32_t* words = warp.reg<uint32_t>(r[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane >> 2, t = lane & 3;
      if (half) {
        c[g + 8 * reg][2 * t] = half_to_float(uint16_t(words[lane]));
        c[g + 8 * reg][2 * t + 1] = half_to_float(uint16_t(words[lane] >> 16));
      } else {
        c[g + 8 * (reg >> 1)][2 * t + (reg & 1)] = std::bit_cast<float>(words[lane]);
      }
    }
  }
}

uint32_t float_bits(double x) { return std::bit_cast<uint32_t>(canonical(float(x))); }

void write_d(Warp& warp, const int32_t* r, bool half, const double d[][kColumns]) {
  for (int reg = 0; reg < (half ? 2 : 4); ++reg) {
    uint32_t* words = warp.reg<uint32_t>(r[reg]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane >> 2, t = lane & 3;
      words[lane] = half ? to_half(d[g + 8 * reg][2 * t]) | uint32_t(to_half(d[g + 8 * reg][2 * t + 1])) << 16
                         : float_bits(d[g + 8 * (reg >> 1)][2 * t + (reg & 1)]);
    }
  }
}

// How this seed's tensor core adds.
struct Adder {
  int group, extra_bits, stride, offset;
};

Adder adder_of(const Grid& grid, int depth) {
  const uint64_t draw = mix(grid.seed ^ 0x6d6d61);
  return {std::min(depth, draw & 1 ? 8 : 16), 1 + int(draw >> 8 & 1), int(draw >> 16 & 7) * 2 + 1,
          int(draw >> 24 & 31)};
}

// x without its bits below `unit`; big is 2^52 units, so that adding it rounds to whole ones.
inline double truncated(double x, double unit, double big) {
  const double size = std::fabs(x);
  const double near = (size + big) - big;
  return std::copysign(near > size ? near - unit : near, x);
}

// One row: sums[n] = truncated sum of sums[n] and a group of products. Plain loops over the columns: they vectorise.
void add_group(const double* a, const double (*b)[kColumns], const int* columns, int count, int kept_bits,
               double* sums) {
  constexpr uint64_t kExponent = 0x7ffull << 52, kCut = ~0ull << 29;
  double products[16][kColumns], largest[kColumns], total[kColumns], unit[kColumns], big[kColumns];
  for (int n = 0; n < kColumns; ++n) {
    const double size = std::fabs(sums[n]);
    largest[n] = size > 0x1p-400 ? size : 0x1p-400;
  }
  for (int k = 0; k < count; ++k) {
    const double x = a[columns[k]];
    const double* y = b[columns[k]];
    for (int n = 0; n < kColumns; ++n) {
      products[k][n] = x * y[n];
      const double size = std::fabs(products[k][n]);
      largest[n] = largest[n] < size ? size : largest[n];
    }
  }
  for (int n = 0; n < kColumns; ++n) {
    const uint64_t exponent = std::bit_cast<uint64_t>(largest[n]) & kExponent;
    unit[n] = std::bit_cast<double>(exponent - (uint64_t(kept_bits) << 52));
    big[n] = std::bit_cast<double>(exponent + (uint64_t(52 - kept_bits) << 52));
    total[n] = truncated(sums[n], unit[n], big[n]);
  }
  for (int k = 0; k < count; ++k) {
    for (int n = 0; n < kColumns; ++n) total[n] += truncated(products[k][n], unit[n], big[n]);
  }
  for (int n = 0; n < kColumns; ++n) sums[n] = std::bit_cast<double>(std::bit_cast<uint64_t>(total[n]) & kCut);
}

template <class T>
bool any_special(const T* values, int count) {
  double all = 0;
  for (int n = 0; n < count; ++n) all += values[n] * 0;  // NaN where one is infinite or NaN
  return all != 0 || all != all;
}

void mma_float(Warp& warp, const Instruction& i, uint32_t mask) {
  require_aligned(warp, mask, true);
  const Layout layout = layout_of(i);
  const int depth = i.count;
  alignas(64) double a[kRows][kMaxDepth], b[kMaxDepth][kColumns], c[kRows][kColumns];
  const int32_t* r = i.r;
  const int32_t* r_a = r + layout.d_registers;
  const int32_t* r_b = r_a + layout.a_registers;
  read_floats(Element(i.a), warp, r_a, layout.a_registers, a, nullptr);
  read_floats(Element(i.b), warp, r_b, layout.b_registers, nullptr, b);
  read_c(warp, r_b + layout.b_registers, i.c & 1, c);
  bool special = any_special(&b[0][0], depth * kColumns) || any_special(&c[0][0], kRows * kColumns);
  for (int row = 0; row < kRows && !special; ++row) special = any_special(a[row], depth);

  double exact[kRows][kColumns];
  const Grid& grid = *warp.block->grid;
  if (special || !grid.jitter) {
    for (int row = 0; row < kRows; ++row) {
      for (int n = 0; n < kColumns; ++n) {
        exact[row][n] = c[row][n];
        for (int k = 0; k < depth; ++k) exact[row][n] = add_odd(exact[row][n], a[row][k] * b[k][n]);
      }
    }
  }
  if (!grid.jitter) return write_d(warp, r, i.c & 2, exact);
  const Adder adder = adder_of(grid, depth);
  int columns[kMaxDepth];
  for (int k = 0; k < depth; ++k) columns[k] = (k * adder.stride + adder.offset) & (depth - 1);
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < depth; k += adder.group) {
      add_group(a[row], b, columns + k, adder.group, 23 + adder.extra_bits, c[row]);
    }
    if (!special) continue;
    for (int n = 0; n < kColumns; ++n) {
      if (!std::isfinite(exact[row][n])) c[row][n] = exact[row][n];
    }
  }
  write_d(warp, r, i.c & 2, c);
}

void mma_integer(Warp& warp, const Instruction& i, uint32_t mask) {
  require_aligned(warp, mask, true);
  const Layout layout = layout_of(i);
  int32_t a[kRows][kMaxDepth], b[kMaxDepth][kColumns];
  const int32_t* r_a = i.r + 4;
  const int32_t* r_b = r_a + layout.a_registers;
  const int32_t* r_c = r_b + layout.b_registers;
  const auto part = [](uint32_t word, int n, bool is_signed_type) {
    const uint8_t byte = uint8_t(word >> (8 * n));
    return is_signed_type ? int32_t(int8_t(byte)) : int32_t(byte);
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    const int g = lane >> 2, t = lane & 3;
    for (int e = 0; e < 4; ++e) {
      for (int reg = 0; reg < layout.a_registers; ++reg) {
        a[g + 8 * (reg & 1)][4 * t + e + 16 * (reg >> 1)] = part(warp.reg<uint32_t>(r_a[reg])[lane], e, i.a == kS8);
      }
      for (int reg = 0; reg < layout.b_registers; ++reg) {
        b[4 * t + e + 16 * reg][g] = part(warp.reg<uint32_t>(r_b[reg])[lane], e, i.b == kS8);
      }
    }
  }
  int32_t result[4][kLanes];
  for (int reg = 0; reg < 4; ++reg) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = (lane >> 2) + 8 * (reg >> 1), column = 2 * (lane & 3) + (reg & 1);
      int64_t sum = warp.reg<int32_t>(r_c[reg])[lane];
      for (int k = 0; k < i.count; ++k) sum += a[row][k] * b[k][column];
      result[reg][lane] = int32_t(i.c & 4 ? std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX) : sum);
    }
  }
  for (int reg = 0; reg < 4; ++reg) std::memcpy(warp.reg<int32_t>(i.r[reg]), result[reg], sizeof result[reg]);
}

Element element_named(Decoder& d) {
  const Type type = d.want_type({Type::F16, Type::BF16, Type::TF32, Type::E4M3, Type::E5M2, Type::S8, Type::U8});
  switch (type) {
    case Type::F16: return kF16;
    case Type::BF16: return kBf16;
    case Type::TF32: return kTf32;
    case Type::E4M3: return kE4m3;
    case Type::E5M2: return kE5m2;
    case Type::S8: return kS8;
    default: return kU8;
  }
}

void mma(Decoder& d) {
  d.want_one_of({"sync"});
  d.want_one_of({"aligned"});
  constexpr int kDepths[] = {4, 8, 16, 32};
  const int depth = kDepths[d.want_one_of({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"})];
  d.want_one_of({"row"});
  d.want_one_of({"col"});
  if (d.take("satfinite")) d.ins.c = 4;
  const Type result = d.want_type({Type::F32, Type::F16, Type::S32});
  const Element a = element_named(d), b = element_named(d);
  const Type accumulator = d.want_type({Type::F32, Type::F16, Type::S32});
  const bool integer = a >= kS8, fp8 = a == kE4m3 || a == kE5m2;
  const int width = kWidths[a];
  if ((integer != (result == Type::S32)) || (integer != (accumulator == Type::S32)) || (integer != (b >= kS8))) {
    d.refuse("these types do not go together");
  }
  if (d.ins.c && !integer) d.refuse(".satfinite of floats");
  if (!integer && !fp8 && a != b) d.refuse("A and B of several types");
  if (fp8 && b != kE4m3 && b != kE5m2) d.refuse("A and B of several types");
  if (depth * width != 16 && depth * width != 32) d.refuse("no such shape of these types");
  if ((result == Type::F16) != (accumulator == Type::F16) || (result == Type::F16 && a != kF16)) {
    d.not_built("an f16 accumulator of this form");
  }
  if (integer)
    depth == 32 ? d.need(70, 80) : d.need(70, 80);
  else if (fp8)
    d.need(84, 89);
  else if (a == kF16 && depth == 8)
    d.need(65, 75);
  else
    d.need(70, 80);
  d.ins.a = a;
  d.ins.b = b;
  d.ins.count = uint8_t(depth);
  if (accumulator == Type::F16) d.ins.c |= 1;
  if (result == Type::F16) d.ins.c |= 2;
  const Layout layout = layout_of(d.ins);
  const auto packed = [&d](int count) {  // .b32 registers only: ptxas refuses even .f32 ones for tf32
    for (const Operand& part : d.peek().parts) {
      if (part.reg >= 0 && is_float(d.function.code->registers[size_t(part.reg)].type))
        d.refuse("A and B are .b32 registers");
    }
    d.in_vector(Type::B32, count);
  };
  const auto wide = [](Type type) { return type == Type::F16 ? Type::F16x2 : type; };
  d.out_vector(wide(result), layout.d_registers, false);
  packed(layout.a_registers);
  packed(layout.b_registers);
  d.in_vector(wide(accumulator), layout.c_registers);
  d.done(integer ? mma_integer : mma_float);
}
}  // namespace

void add_matrix_opcodes(Opcodes& table) { table["mma"] = mma; }
}  // namespace soft
