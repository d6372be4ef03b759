// What a linear does with its sums before it stores them: bias, activation, gating, residual, rounding.
//
// Kept apart since both forms of the linear, for few tokens and for many, end the same way. All of it is fp32; the
// result is rounded once.
#pragma once
#include "memory.cuh"

enum Activation : int { kNone = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3 };

// The arguments of a linear: Y[tokens, n] = act(X[tokens, k] W^T + bias) + residual. Ungated, W is [n, k]; gated, W is
// [2n, k], its first n rows the gate's and the others up's, and Y = act(gate) * up + residual. `bias` is as long as W
// has rows; bias and residual may be null. Y is T, or fp32 if `wide`. The residual may be Y itself.
template <typename T>
struct Linear {
  void* y;
  const T* x;
  const T* weight;
  const T* bias;
  const T* residual;
  int tokens, n, k;
  int activation;
  int wide;
};

inline float activate(float x, int activation) {
  switch (activation) {
    case kSilu:
      return __fdividef(x, 1.0f + __expf(-x));
    case kGeluTanh: {
      // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2u)), which is exact where tanh nears -1; 1.5957691 is 2 sqrt(2 / pi).
      const float u2 = 1.5957691216f * (x + 0.044715f * x * x * x);
      return __fdividef(x, 1.0f + __expf(-u2));
    }
    case kGelu: {
      // x * Phi(x), with erf by formula 7.1.26 of Abramowitz and Stegun, right to 1.5e-7 of 1.
      const float z = fabsf(x) * 0.7071067812f;
      const float t = __fdividef(1.0f, 1.0f + 0.3275911f * z);
      float tail = 1.061405429f * t;
      tail = (tail - 1.453152027f) * t;
      tail = (tail + 1.421413741f) * t;
      tail = (tail - 0.284496736f) * t;
      tail = (tail + 0.254829592f) * t;
      tail *= 0.5f * __expf(-z * z);  // the normal distribution's tail beyond |x|
      return x * (x < 0.0f ? tail : 1.0f - tail);
    }
    default:
      return x;
  }
}

// Four neighbours from `from`, of which the first `count` exist; aligned to their size if `vectors`.
template <typename T>
inline void load_four(const T* from, bool vectors, int count, float (&out)[4]) {
  if (vectors) {
    const Quad quad = *reinterpret_cast<const Quad*>(from);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out[2 * i] = T::low(quad.pair[i]);
      out[2 * i + 1] = T::high(quad.pair[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = i < count ? T::widen(from[i]) : 0.0f;
  }
}

// Four neighbouring elements of Y from their sums (and, gated, up's sums). `column` is a multiple of 4 and less than n;
// elements beyond n are dropped.
template <typename T, bool kGated>
inline void store_four(const Linear<T>& p, int token, int column, float (&sum)[4], float (&up)[4]) {
  const bool vectors = p.n % 4 == 0;  // else rows of Y are not aligned
  const int count = p.n - column;
  const i64 at = i64(token) * p.n + column;
  float more[4];
  if (p.bias != nullptr) {
    load_four(p.bias + column, vectors, count, more);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += more[i];
    if (kGated) {
      load_four(p.bias + p.n + column, vectors, count, more);
#pragma unroll
      for (int i = 0; i < 4; ++i) up[i] += more[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[i] = activate(sum[i], p.activation);
    if (kGated) sum[i] *= up[i];
  }
  if (p.residual != nullptr) {
    load_four(p.residual + at, vectors, count, more);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += more[i];
  }
  float* const wide = static_cast<float*>(p.y) + at;
  T* const half = static_cast<T*>(p.y) + at;
  if (vectors && p.wide) {
    *reinterpret_cast<float4*>(wide) = float4{sum[0], sum[1], sum[2], sum[3]};
  } else if (vectors) {
    *reinterpret_cast<Quad*>(half) = Quad{{T::pack(sum[0], sum[1]), T::pack(sum[2], sum[3])}};
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count && p.wide) wide[i] = sum[i];
      if (i < count && !p.wide) half[i] = T::round(sum[i]);
    }
  }
}
