// Rows of the embedding table for a step's tokens, scaled (Gemma) and with learned positions added (GPT-2):
//
//   out[t] = table[tokens[t]] * scale + position_table[positions[t]]
//
// The product of two halves is exact in fp32, and the sum is rounded once: bitwise what the formula gives. With scale
// 1 and no position table a row is copied as it is. A token t < 0 stands for ids[~t], where `ids` is given: what the
// step before chose and the host has not seen yet. That may be -1, of logits that were NaN: a token below 0 or beyond
// the vocabulary reads the nearest row. Positions come from the host and are taken as they are.
//
// All rows' 16-byte pieces are one list; a block takes kEach * 256 in a row, so that neighbouring threads touch
// neighbouring bytes and a thread has kEach loads in flight, or twice that with positions:
//
//   piece of the block     0 .. 255    256 .. 511    512 .. 767    768 .. 1023
//   thread                 0 .. 255    0 .. 255      0 .. 255      0 .. 255
#include "memory.cuh"

constexpr int kThreads = 256;
constexpr int kEach = 4;

template <typename T>
inline void embed(T* out, const T* table, const T* position_table, const int* tokens, const int* ids,
                  const int* positions, int count, int hidden, int vocabulary, float scale) {
  const u32 pieces = hidden / 8;
  int row[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {  // pieces beyond the end look up the last token, and read no row
    const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    row[i] = tokens[min(piece / pieces, u32(count - 1))];
  }
  if (ids != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (row[i] < 0) row[i] = ids[~row[i]];
  }
  Vec rows[kEach], added[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    const u32 token = piece / pieces;
    const u32 at = piece % pieces * 8;
    const bool valid = token < count;
    const int nearest = min(max(row[i], 0), vocabulary - 1);
    rows[i] = load_constant(table + i64(nearest) * hidden + at, valid);
    if (position_table != nullptr) {
      const int position = valid ? positions[token] : 0;
      added[i] = load_constant(position_table + i64(position) * hidden + at, valid);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    if (piece / pieces >= count) return;
    if (scale != 1.0f || position_table != nullptr) {
      float x[8];
      unpack<T>(rows[i], x);
      if (position_table != nullptr) {
        float more[8];
        unpack<T>(added[i], more);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = x[j] * scale + more[j];
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] *= scale;
      }
      rows[i] = pack<T>(x);
    }
    store(out + i64(piece) * 8, rows[i]);
  }
}

#define EMBED(name, T)                                                                                             \
  extern "C" __global__ __launch_bounds__(kThreads, 4) void name(                                                  \
      T* out, const T* table, const T* position_table, const int* tokens, const int* ids, const int* positions,    \
      int count, int hidden, int vocabulary, float scale) {                                                        \
    embed<T>(out, table, position_table, tokens, ids, positions, count, hidden, vocabulary, scale);                \
  }

EMBED(embed_bf16, Bf16)
EMBED(embed_f16, F16)
