// The gated activation of an MLP: out = act(gate) * up, where gate_up [tokens, 2n] holds a token's gate, then its up.
//
// It follows a linear that could not apply it itself: one of many tokens whose gate and up lie in different tiles, or
// one that left fp32 sums [splits, tokens, 2n] of parts of its k, which are added here from part 0 up. The arithmetic
// is the linear's own (linear_epilogue.cuh), in fp32 and rounded once.
//
// All rows' pieces of 8 elements are one list; a block takes kEach * 256 in a row, so that neighbouring threads touch
// neighbouring bytes and a thread has 2 * kEach loads of 16 bytes in flight:
//
//   piece of the block     0 .. 255    256 .. 511
//   thread                 0 .. 255    0 .. 255
#include "linear_epilogue.cuh"

constexpr int kThreads = 256;
constexpr int kEach = 2;

template <typename T, int kActivation>
inline void gate(T* out, const void* gate_up, int tokens, int n, int splits) {
  const u32 pieces = n / 8;
  const T* half = static_cast<const T*>(gate_up);
  Vec gates[kEach], ups[kEach];
  if (splits == 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
      const u32 token = piece / pieces;
      const T* from = half + i64(token) * 2 * n + piece % pieces * 8;
      gates[i] = load_stream(from, token < tokens);
      ups[i] = load_stream(from + n, token < tokens);
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const u32 piece = (blockIdx.x * kEach + i) * kThreads + threadIdx.x;
    const u32 token = piece / pieces;
    if (token >= tokens) return;
    float x[8] = {}, up[8] = {};
    if (splits == 0) {
      unpack<T>(gates[i], x);
      unpack<T>(ups[i], up);
    } else {
      const i64 part = i64(tokens) * 2 * n;
      const float* from = static_cast<const float*>(gate_up) + i64(token) * 2 * n + piece % pieces * 8;
#pragma unroll 2
      for (int split = 0; split < splits; ++split) {
        add_part(x, from + split * part);
        add_part(up, from + split * part + n);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = activate(x[j], kActivation) * up[j];
    store(out + i64(piece) * 8, pack<T>(x));
  }
}

#define GATE(name, T, activation)                                                                                   \
  extern "C" __global__ __launch_bounds__(kThreads, 4) void name(T* out, const void* gate_up, int tokens, int n,    \
                                                                 int splits) {                                      \
    gate<T, activation>(out, gate_up, tokens, n, splits);                                                           \
  }

GATE(gate_silu_bf16, Bf16, kSilu)
GATE(gate_silu_f16, F16, kSilu)
GATE(gate_gelu_bf16, Bf16, kGelu)
GATE(gate_gelu_f16, F16, kGelu)
GATE(gate_gelu_tanh_bf16, Bf16, kGeluTanh)
GATE(gate_gelu_tanh_f16, F16, kGeluTanh)
