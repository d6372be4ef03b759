// RMS norm and layer norm over rows, with the residual add before it, or the sum of a split linear fused in.
//
//   s = x + residual                        rounded to T, written back, and the norm is of the rounded s
//   y = s / sqrt(mean(s^2) + eps) * (weight_offset + weight)                                  rms
//   y = (s - mean(s)) / sqrt(var(s) + eps) * (weight_offset + weight) + bias                  layer
//
// A row belongs to a group of kGroup threads and stays in their registers, so it is read once:
//
//   warp    kGroup 32, 4 rows a block    hidden <= 1,024
//   block   kGroup 256                   hidden <= 8,192
//   wide    kGroup 1024                  hidden <= 32,768
//   odd     kGroup 256                   hidden <= 8,192, and no multiple of 8: rows are not 16-byte aligned
//
// Thread r of the group holds up to 32 elements, in 4 pieces of 8. Piece p is the 16 bytes from element
// (p * kGroup + r) * 8; in the odd form its element j is number (p * 8 + j) * kGroup + r. Either way neighbouring
// threads touch neighbouring bytes:
//
//              p = 0                                      p = 1
//   element    | 0 .. 7 | 8 .. 15 | 16 .. 23 | ... | ...  | 8 kGroup .. |
//   thread     |   0    |    1    |    2     | ... | ...  |     0       |
//
// x is T [tokens, hidden], or with splits > 0 fp32 [splits, tokens, hidden], to be summed from part 0 up. All arithmetic
// is fp32, and a row's result depends on nothing but that row. `sum` may be `residual` or `x`, and `y` may be `x`: each
// element is read and then written by the one thread that holds it, and no row goes through the read-only cache.
#include "memory.cuh"

constexpr int kPieces = 4;

inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// The sum over the group, in every thread of it, added in a fixed order.
template <int kGroup>
inline float group_sum(float x, float* scratch) {
  x = warp_sum(x);
  if (kGroup == kWarp) return x;
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kGroup / kWarp; ++warp) sum += scratch[warp];
  return sum;
}

// Where in a row of `hidden` elements this thread's pieces lie.
template <int kGroup, bool kOdd>
struct Pieces {
  static constexpr int kStride = kOdd ? kGroup : 1;
  static constexpr int kTogether = kOdd || kGroup == 1024 ? 1 : 4;  // parts at once, as registers allow
  int hidden;

  int at(int piece, int j = 0) const {
    const int rank = threadIdx.x % kGroup;
    return piece * 8 * kGroup + (kOdd ? rank : rank * 8) + j * kStride;
  }

  // A piece; zeros past the end of the row.
  template <typename T>
  Vec read(const T* row, int piece) const {
    Vec v = {};
    if (!kOdd) {
      if (at(piece) < hidden) v = load(row + at(piece));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (at(piece, j) < hidden) v.pair[j / 2] |= u32(row[at(piece, j)].bits) << (j % 2 * 16);
      }
    }
    return v;
  }

  template <typename T>
  void write(T* row, int piece, const Vec& v) const {
    if (!kOdd) {
      if (at(piece) < hidden) store(row + at(piece), v);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (at(piece, j) < hidden) row[at(piece, j)] = T{u16(v.pair[j / 2] >> (j % 2 * 16))};
      }
    }
  }

  // Adds this piece of the first kTogether of `parts` parts, `part` elements apart, which nothing writes during the
  // launch. All loads go before what waits for them; of a part that is not there they give zeros, which change no sum.
  void add(const float* row, i64 part, int parts, int piece, float (&sum)[8]) const {
    if constexpr (kOdd) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (at(piece, j) < hidden) sum[j] += row[at(piece, j)];
      }
    } else if (at(piece) < hidden) {
      Vec low[kTogether], high[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        low[k] = load_constant(row + k * part + at(piece), k == 0 || k < parts);
        high[k] = load_constant(row + k * part + at(piece) + 4, k == 0 || k < parts);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[j] += __uint_as_float(low[k].pair[j]);
          sum[j + 4] += __uint_as_float(high[k].pair[j]);
        }
      }
    }
  }
};

template <typename T, int kGroup, bool kOdd, bool kLayer>
inline void norm(T* y, T* sum, const void* x, const T* residual, const T* weight, const T* bias, int tokens,
                 int hidden, int splits, float eps, float weight_offset) {
  __shared__ float scratch[2][kGroup / kWarp];
  const int token = blockIdx.x * (blockDim.x / kGroup) + threadIdx.x / kGroup;
  if (kGroup == kWarp && token >= tokens) return;  // a whole warp; with larger groups the grid is exact
  const i64 row = i64(token) * hidden, part = i64(tokens) * hidden;
  const Pieces<kGroup, kOdd> pieces{hidden};

  // s, as rounded: so it is exact in T, and half as many registers hold it. Loads go before what waits for them.
  Vec s[kPieces];
  Vec r[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) r[p] = residual == nullptr ? Vec{} : pieces.read(residual + row, p);
  if (splits == 0) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) s[p] = pieces.read(static_cast<const T*>(x) + row, p);
  }
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    float total[8] = {};
    if (splits == 0) {
      if (residual == nullptr) break;
      unpack<T>(s[p], total);
    }
#pragma unroll kGroup == 1024 ? 4 : 1
    for (int i = 0; i < splits; i += pieces.kTogether) {
      pieces.add(static_cast<const float*>(x) + i * part + row, part, splits - i, p, total);
    }
    float more[8];
    unpack<T>(r[p], more);
#pragma unroll
    for (int j = 0; j < 8; ++j) total[j] += more[j];
    s[p] = pack<T>(total);
  }
  if (sum != nullptr) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) pieces.write(sum + row, p, s[p]);
  }

  // The weights are on their way while the group adds up, unless registers are short.
  constexpr bool kEarly = kGroup < 1024 && !kOdd;
  Vec w[kPieces];
  if (kEarly) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) w[p] = pieces.read(weight, p);
  }
  float mean = 0.0f;
  if (kLayer) {
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      float v[8];
      unpack<T>(s[p], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) total += v[j];
    }
    mean = group_sum<kGroup>(total, scratch[0]) / hidden;
  }
  float square = 0.0f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    float v[8];
    unpack<T>(s[p], v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (kLayer) v[j] = pieces.at(p, j) < hidden ? v[j] - mean : 0.0f;
      square += v[j] * v[j];
    }
  }
  const float scale = 1.0f / sqrtf(group_sum<kGroup>(square, scratch[1]) / hidden + eps);

#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    if (pieces.at(p) >= hidden) break;
    float v[8], by[8];
    unpack<T>(s[p], v);
    unpack<T>(kEarly ? w[p] : pieces.read(weight, p), by);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = (v[j] - mean) * scale * (weight_offset + by[j]);
    if (kLayer && bias != nullptr) {
      float b[8];
      unpack<T>(pieces.read(bias, p), b);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] += b[j];
    }
    pieces.write(y + row, p, pack<T>(v));
  }
}

#define NORM(name, T, group, odd, layer, threads, blocks)                                                      \
  extern "C" __global__ __launch_bounds__(threads, blocks) void name(                                          \
      T* y, T* sum, const void* x, const T* residual, const T* weight, const T* bias, int tokens, int hidden,  \
      int splits, float eps, float weight_offset) {                                                            \
    norm<T, group, odd, layer>(y, sum, x, residual, weight, bias, tokens, hidden, splits, eps, weight_offset); \
  }

#define NORM_FORMS(kind, half, T, layer)                              \
  NORM(norm_##kind##_warp_##half, T, 32, false, layer, 128, 6)        \
  NORM(norm_##kind##_block_##half, T, 256, false, layer, 256, 3)      \
  NORM(norm_##kind##_wide_##half, T, 1024, false, layer, 1024, 1)     \
  NORM(norm_##kind##_odd_##half, T, 256, true, layer, 256, 3)

NORM_FORMS(rms, bf16, Bf16, false)
NORM_FORMS(rms, f16, F16, false)
NORM_FORMS(layer, bf16, Bf16, true)
NORM_FORMS(layer, f16, F16, true)
