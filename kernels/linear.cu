// Linear layers: Y = act(X W^T + bias) + residual, or gated Y = act(gate) * up, for rows of 16-byte aligned weights as
// they lie in a snapshot. Two forms, each with its layout at the head of its file:
//
//   skinny  few tokens     streams W; a block makes 16 or 32 rows of W by 8, 16 or 32 tokens     linear_skinny.cuh
//   tile    many           128 x 128 or 64 x 64 tiles of Y through staged shared memory          linear_tile.cuh
//
// Both accumulate in fp32 and take any n, and any k that is a multiple of 8.
#include "linear_skinny.cuh"
#include "linear_tile.cuh"

#define LINEAR(name, T, threads, blocks, ...)                                                                     \
  extern "C" __global__ __launch_bounds__(threads, blocks) void name(                                             \
      void* y, const T* x, const T* weight, const T* bias, const T* residual, int tokens, int n, int k,           \
      int activation, int wide) {                                                                                 \
    __VA_ARGS__(Linear<T>{y, x, weight, bias, residual, tokens, n, k, activation, wide});                         \
  }

// The number is a block's tokens. With 32 it takes 32 rows of W, since X would else be most of what it reads.
#define SKINNY(half, T, form, gated)                                                                \
  LINEAR(linear_skinny8##form##_##half, T, 256, 3, linear_skinny<T, 1, 1, 4, 4, gated>)             \
  LINEAR(linear_skinny16##form##_##half, T, 256, 2, linear_skinny<T, 2, 1, 4, 2, gated>)            \
  LINEAR(linear_skinny32##form##_##half, T, 256, 2, linear_skinny<T, 4, 2, 2, 1, gated>)

// _3, _4, _5 and _8: stages of shared memory. What a block has in flight is all but one of them.
#define TILE(half, T, form, gated)                                                                  \
  LINEAR(linear_tile64_4##form##_##half, T, 128, 4, linear_tile<T, 64, 64, 4, gated>)               \
  LINEAR(linear_tile64_8##form##_##half, T, 128, 3, linear_tile<T, 64, 64, 8, gated>)               \
  LINEAR(linear_tile128_3##form##_##half, T, 128, 2, linear_tile<T, 128, 128, 3, gated>)            \
  LINEAR(linear_tile128_4##form##_##half, T, 128, 2, linear_tile<T, 128, 128, 4, gated>)            \
  LINEAR(linear_tile128_5##form##_##half, T, 128, 2, linear_tile<T, 128, 128, 5, gated>)

SKINNY(bf16, Bf16, , false)
SKINNY(bf16, Bf16, _gated, true)
SKINNY(f16, F16, , false)
SKINNY(f16, F16, _gated, true)
TILE(bf16, Bf16, , false)
TILE(bf16, Bf16, _gated, true)
TILE(f16, F16, , false)
TILE(f16, F16, _gated, true)
