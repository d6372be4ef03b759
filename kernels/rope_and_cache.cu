// What happens to q, k and v between their linear and attention: an RMS norm of each head of q and k (Qwen3, Gemma
// 3), the rotation of q and k by position, and K and V into the pages.
//
//   x = qkv / sqrt(mean(qkv^2) + eps) * (weight_offset + weight)         of q and k, where there are weights
//   y[i] = x[i] * cos[a] - x[other] * sin[a]    the first of a pair     neox: i and i + h, a = i (h = rotary_dim / 2)
//   y[i] = x[i] * cos[a] + x[other] * sin[a]    the second              interleaved: 2a and 2a + 1
//
// Elements from rotary_dim on, and v, stay as they are. Everything is fp32, rounded once. qkv is T [tokens, all
// heads], or with splits > 0 fp32 [splits, tokens, all heads], to be summed from part 0 up; the table of cos and sin,
// [positions, h], comes from the host.
//
// A warp takes kEach * (32 / lanes) heads of one token, and of a head 8 neighbouring elements are a lane's: 8 lanes
// are a head of up to 64 elements, 16 of up to 128, 32 of up to 256. All its loads, the table's too, are issued
// before any is needed, and what depends on the position alone is read once for all its heads. head_dim 64, four
// heads at once:
//
//   lane       0      1    ..    7      8    ..    15     16  ..       24  ..
//   head n     0-7    8-15 ..    56-63
//   head n + 1                          0-7  ..    56-63
//
// The other of a pair is, in neox order, h elements away: in another lane, so elements pass through shared memory,
// element i at [i % 8][lane], where neither side meets a bank twice.
//
// Slot s means token s % 16 of page s / 16; with slot -1 nothing is written but q. Pages are as attention reads them:
// [2 (K, V)][kv_heads][16][head_dim] of this layer at pages + page * page_stride elements.
#include "memory.cuh"

constexpr int kWarps = 4;
constexpr int kEach = 4;
constexpr int kPageTokens = 16;

struct Problem {
  void* q;              // [tokens, heads, head_dim]
  void* pages;
  const void* qkv;      // [tokens, heads + 2 kv_heads, head_dim]
  const void* q_weight; // [head_dim], null where q and k are not normed
  const void* k_weight;
  const float* cos;     // [positions, rotary_dim / 2]
  const float* sin;
  const int* positions; // [tokens]
  const int* slots;     // [tokens]
  int tokens, heads, kv_heads, head_dim, rotary_dim, splits;
  i64 page_stride;      // in elements
  float eps, weight_offset;
  float key_inverse = 1.0f, value_inverse = 1.0f;  // of the scales of fp8 pages
};

// 8 elements as they lie in pages of T.
template <typename T>
struct HalfPages {
  static constexpr int kBytes = 2;
  static void write(u8* to, const float (&x)[8], float) { store(to, pack<T>(x)); }
};

// The same of fp8: e4m3 of x * inverse.
template <typename T>
struct Fp8Pages {
  static constexpr int kBytes = 1;
  static void write(u8* to, const float (&x)[8], float inverse) {
    Quad codes = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) codes.pair[i / 4] |= u32(e4m3_round(x[i] * inverse)) << (i % 4 * 8);
    *reinterpret_cast<Quad*>(to) = codes;
  }
};

// cos and sin of a lane's elements first .. first + 7, sin negated where the element is the first of its pair.
template <bool kInterleaved>
inline void load_angles(float (&cos)[8], float (&sin)[8], const float* cos_row, const float* sin_row, int first,
                        int h) {
  const auto angle = [&](int i) { return kInterleaved ? i / 2 : i < h ? i : i - h; };
  if (h % 8 == 0) {  // then neighbouring elements have neighbouring angles, and rows are aligned
    constexpr int kVecs = kInterleaved ? 1 : 2;
    Vec c[2] = {}, s[2] = {};
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      c[i] = load_constant(cos_row + angle(first) + 4 * i, first < 2 * h);
      s[i] = load_constant(sin_row + angle(first) + 4 * i, first < 2 * h);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int from = kInterleaved ? i / 2 : i;
      cos[i] = __uint_as_float(c[from / 4].pair[from % 4]);
      sin[i] = __uint_as_float(s[from / 4].pair[from % 4]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool valid = first + i < 2 * h;
      cos[i] = valid ? cos_row[angle(first + i)] : 0.0f;
      sin[i] = valid ? sin_row[angle(first + i)] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (kInterleaved ? i % 2 == 0 : first + i < h) sin[i] = -sin[i];
  }
}

// The elements that pair with x, of a lane whose elements start at `first` of its head. `exchange`: [8][32], the
// warp's own.
template <bool kInterleaved>
inline void find_others(float (&other)[8], const float (&x)[8], float (*exchange)[kWarp], int first, int h) {
  if (kInterleaved) {
#pragma unroll
    for (int i = 0; i < 8; ++i) other[i] = x[i ^ 1];
    return;
  }
  const int lane = threadIdx.x % kWarp;
  const int lane_of_head = lane - first / 8;
  __syncwarp();  // all have read what the last head left here
#pragma unroll
  for (int i = 0; i < 8; ++i) exchange[i][lane] = x[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int place = first + i < h ? first + i + h : first + i - h;
    other[i] = first + i < 2 * h ? exchange[place % 8][lane_of_head + place / 8] : 0.0f;
  }
}

template <typename T, template <typename> class Pages, bool kInterleaved>
inline void rope_and_cache(const Problem& p) {
  __shared__ float exchange[kWarps][8][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int lanes = p.head_dim <= 64 ? 8 : p.head_dim <= 128 ? 16 : 32;
  const int at_once = kWarp / lanes;
  const int all = p.heads + 2 * p.kv_heads;
  const int warps = (all + at_once * kEach - 1) / (at_once * kEach);  // of a token
  const int unit = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int token = unit / warps;
  if (token >= p.tokens) return;
  const int first_head = unit % warps * (at_once * kEach) + lane / lanes;
  const int first = lane % lanes * 8;
  const bool used = first < p.head_dim;
  const i64 row = i64(token) * all * p.head_dim + first;

  Vec raw[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int head = first_head + i * at_once;
    const bool valid = p.splits == 0 && used && head < all;
    raw[i] = load_stream(static_cast<const T*>(p.qkv) + row + i64(head) * p.head_dim, valid);
  }
  const int slot = p.slots[token];
  const int h = p.rotary_dim / 2;
  const i64 angles = i64(p.positions[token]) * h;
  float cos[8], sin[8];
  load_angles<kInterleaved>(cos, sin, p.cos + angles, p.sin + angles, first, h);
  const bool normed = p.q_weight != nullptr;
  const Vec q_weight = load_constant(static_cast<const T*>(p.q_weight) + first, normed && used);
  const Vec k_weight = load_constant(static_cast<const T*>(p.k_weight) + first, normed && used);

  u8* const page = static_cast<u8*>(p.pages) +
                   (i64(slot / kPageTokens) * p.page_stride + i64(slot % kPageTokens) * p.head_dim + first) *
                       Pages<T>::kBytes;
  const int head_bytes = kPageTokens * p.head_dim * Pages<T>::kBytes;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int head = first_head + i * at_once;
    const bool valid = used && head < all;
    const bool turns = head < p.heads + p.kv_heads;
    float x[8];
    unpack<T>(raw[i], x);
    if (p.splits > 0 && valid) {
      const float* from = static_cast<const float*>(p.qkv) + row + i64(head) * p.head_dim;
      const i64 part = i64(p.tokens) * all * p.head_dim;
#pragma unroll 2
      for (int split = 0; split < p.splits; ++split) add_part(x, from + split * part);
    }
    if (normed) {
      float square = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) square += x[j] * x[j];
      for (int offset = lanes / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
      const float scale = 1.0f / sqrtf(square / p.head_dim + p.eps);
      Vec pairs;
#pragma unroll
      for (int j = 0; j < 4; ++j) pairs.pair[j] = head < p.heads ? u32(q_weight.pair[j]) : u32(k_weight.pair[j]);
      float weight[8];
      unpack<T>(pairs, weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = turns ? x[j] * scale * (p.weight_offset + weight[j]) : x[j];
    }
    if (h > 0) {
      float other[8];
      find_others<kInterleaved>(other, x, exchange[threadIdx.x / kWarp], first, h);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = turns && first + j < 2 * h ? x[j] * cos[j] + other[j] * sin[j] : x[j];
    }
    if (!valid) continue;
    if (head < p.heads) {
      T* const q = static_cast<T*>(p.q) + (i64(token) * p.heads + head) * p.head_dim + first;
      store(q, pack<T>(x));
    } else if (slot >= 0) {
      Pages<T>::write(page + i64(head - p.heads) * head_bytes, x, turns ? p.key_inverse : p.value_inverse);
    }
  }
}

#define ROPE(name, T, interleaved)                                                                                  \
  extern "C" __global__ __launch_bounds__(kWarps * kWarp, 5) void name(                                             \
      void* q, void* pages, const void* qkv, const void* q_weight, const void* k_weight, const float* cos,          \
      const float* sin, const int* positions, const int* slots, int tokens, int heads, int kv_heads, int head_dim,  \
      int rotary_dim, int splits, i64 page_stride, float eps, float weight_offset) {                                \
    rope_and_cache<T, HalfPages, interleaved>({q, pages, qkv, q_weight, k_weight, cos, sin, positions, slots,       \
                                               tokens, heads, kv_heads, head_dim, rotary_dim, splits, page_stride,  \
                                               eps, weight_offset});                                                \
  }

#define ROPE_FP8(name, T, interleaved)                                                                              \
  extern "C" __global__ __launch_bounds__(kWarps * kWarp, 5) void name(                                             \
      void* q, void* pages, const void* qkv, const void* q_weight, const void* k_weight, const float* cos,          \
      const float* sin, const int* positions, const int* slots, int tokens, int heads, int kv_heads, int head_dim,  \
      int rotary_dim, int splits, i64 page_stride, float eps, float weight_offset, float key_inverse,               \
      float value_inverse) {                                                                                        \
    rope_and_cache<T, Fp8Pages, interleaved>({q, pages, qkv, q_weight, k_weight, cos, sin, positions, slots,        \
                                              tokens, heads, kv_heads, head_dim, rotary_dim, splits, page_stride,   \
                                              eps, weight_offset, key_inverse, value_inverse});                     \
  }

ROPE(rope_and_cache_neox_bf16, Bf16, false)
ROPE(rope_and_cache_neox_f16, F16, false)
ROPE(rope_and_cache_interleaved_bf16, Bf16, true)
ROPE(rope_and_cache_interleaved_f16, F16, true)
ROPE_FP8(rope_and_cache_neox_fp8_bf16, Bf16, false)
ROPE_FP8(rope_and_cache_neox_fp8_f16, F16, false)
ROPE_FP8(rope_and_cache_interleaved_fp8_bf16, Bf16, true)
ROPE_FP8(rope_and_cache_interleaved_fp8_f16, F16, true)
