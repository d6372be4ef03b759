// Rows of the embedding table for a step's tokens, scaled (Gemma) and with learned positions added (GPT-2):
//
//   out[t] = table[tokens[t]] * scale + position_table[positions[t]]
//
// The product of two halves is exact in fp32, and the sum is rounded once: bitwise what the formula gives. With scale
// 1 and no position table a row is copied as it is. A token below 0 or beyond the vocabulary reads the nearest row,
// since ids may come from a step whose logits were NaN; positions come from the host and are taken as they are.
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
inline void embed(T* out, const T* table, const T* position_table, const int* tokens, const int* positions, int count,
                  int hidden, int vocabulary, float scale) {
  const u32 pieces = hidden / 8;
  Vec rows[kEach], added[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    const u32 token = piece / pieces;
    const u32 at = piece % pieces * 8;
    const bool valid = token < count;
    const int row = valid ? min(max(tokens[token], 0), vocabulary - 1) : 0;
    rows[i] = load_constant(table + i64(row) * hidden + at, valid);
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
      T* out, const T* table, const T* position_table, const int* tokens, const int* positions, int count,         \
      int hidden, int vocabulary, float scale) {                                                                   \
    embed<T>(out, table, position_table, tokens, positions, count, hidden, vocabulary, scale);                     \
  }

EMBED(embed_bf16, Bf16)
EMBED(embed_f16, F16)
