// The activations of a gated layer, a vector at a time.
// Apart from the layer because each is an approximation with an error to state.
#pragma once

#include "vector.hpp"

namespace pilotlight {
namespace {

// x * sigmoid(x), within 4 units in the last place.
[[gnu::always_inline]] inline Floats silu(Floats x) { return x / (1.0f + exponential(-x)); }

// https://arxiv.org/abs/1606.08415, the approximation. x * (1 + tanh(y)) / 2 = x * sigmoid(2 y).
[[gnu::always_inline]] inline Floats gelu_tanh(Floats x) {
    const Floats y = x * (1.0f + 0.044715f * x * x);
    return x / (1.0f + exponential(-1.5957691216f * y));  // 2 * sqrt(2 / pi)
}

// x * Phi(x). erf by formula 7.1.26 of Abramowitz and Stegun, right to 1.5e-7 of 1.
[[gnu::always_inline]] inline Floats gelu(Floats x) {
    const Floats z = (Floats)((Words)x & 0x7fffffff) * 0.70710678f;
    const Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats tail = 1.061405429f * t;
    tail = (tail - 1.453152027f) * t;
    tail = (tail + 1.421413741f) * t;
    tail = (tail - 0.284496736f) * t;
    tail = (tail + 0.254829592f) * t;
    tail = tail * exponential(-z * z) * 0.5f;  // the normal distribution's tail beyond |x|
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

[[gnu::always_inline]] inline Floats activated(Floats x, PlActivation activation) {
    switch (activation) {
        case PL_SILU:
            return silu(x);
        case PL_GELU:
            return gelu(x);
        default:
            return gelu_tanh(x);
    }
}

}  // namespace
}  // namespace pilotlight
