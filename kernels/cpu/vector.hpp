// Vectors of a level's width, and the few functions on them that all kernels are written in.
// Apart from the kernels because here alone levels differ: by the width, and by how 16-bit numbers become fp32.
//
// GCC's vector extension (https://gcc.gnu.org/onlinedocs/gcc/Vector-Extensions.html), which clang has too: on a CPU
// without a level of its own, arm64 say, the compiler makes its instructions of 128-bit vectors. Everything is in an
// anonymous namespace, for the same names are compiled once for each level.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "abi.h"

// Before a loop over registers: unrolled early, its array is never in memory (GCC else keeps one there).
#if defined(__clang__)
#define PL_UNROLL _Pragma("unroll")
#else
#define PL_UNROLL _Pragma("GCC unroll 8")
#endif

namespace pilotlight {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // floats in a vector
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

using Floats = float __attribute__((vector_size(kWidth * 4)));
using Ints = int32_t __attribute__((vector_size(kWidth * 4)));
using Words = uint32_t __attribute__((vector_size(kWidth * 4)));
using Halves = uint16_t __attribute__((vector_size(kWidth * 2)));
using Four = float __attribute__((vector_size(16)));

template <class Vector>
[[gnu::always_inline]] inline Vector load(const void* from) {
    Vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

template <class Vector>
[[gnu::always_inline]] inline void store(void* to, Vector v) {
    memcpy(to, &v, sizeof v);
}

// The first `count` elements, zeros after them; nothing past them is read.
template <class Vector>
[[gnu::always_inline]] inline Vector load_first(const void* from, int count) {
    Vector v = {};
    memcpy(&v, from, static_cast<size_t>(count) * sizeof v[0]);
    return v;
}

template <class Vector>
[[gnu::always_inline]] inline void store_first(void* to, Vector v, int count) {
    memcpy(to, &v, static_cast<size_t>(count) * sizeof v[0]);
}

[[gnu::always_inline]] inline Floats all(float x) { return Floats{} + x; }

// The larger of each pair, b where one is a NaN.
[[gnu::always_inline]] inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline float sum(Floats v) {
    for (int step = kWidth / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; ++i) {
            v[i] += v[i + step];
        }
    }
    return v[0];
}

inline float largest(Floats v) {
    float most = v[0];
    for (int i = 1; i < kWidth; ++i) {
        most = v[i] > most ? v[i] : most;
    }
    return most;
}

// The sums of four vectors. Each is made in the same order.
[[gnu::always_inline]] inline Four sums(Floats a, Floats b, Floats c, Floats d) {
#if defined(__AVX512F__)
    const Floats ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                      __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    const Floats cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                      __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    Floats s = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    s += __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return __builtin_shufflevector(s, s, 0, 4, 8, 12);
#elif defined(__AVX2__)
    const Floats ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                      __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    const Floats cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11) +
                      __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
    Floats s = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    s += __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6);
    return __builtin_shufflevector(s, s, 0, 4, 2, 6);
#else
    const Floats ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    const Floats cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
#endif
}

// --- numbers of 16 bits ------------------------------------------------------------------------------------

struct Float {
    using Element = float;
    static Floats read(const float* from) { return load<Floats>(from); }
    static Floats read_first(const float* from, int count) { return load_first<Floats>(from, count); }
    static void write(float* to, Floats v) { store(to, v); }
    static void write_first(float* to, Floats v, int count) { store_first(to, v, count); }
};

[[gnu::always_inline]] inline Floats from_half(Halves h) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps((__m128i)h);
#else
    // The bits moved up stand for 2^-112 of the number, also of a subnormal; infinity and NaN have their own exponent.
    const Words w = __builtin_convertvector(h, Words);
    const Words moved = (w & 0x7fff) << 13;
    const Floats scaled = (Floats)moved * 0x1p112f;
    const Words finite = (Words)scaled, infinite = moved | 0x7f800000;
    const Words kept = (Words)((w & 0x7c00) == 0x7c00);
    return (Floats)((infinite & kept) | (finite & ~kept) | (w & 0x8000) << 16);
#endif
}

// To the nearest, ties to even; saturates at the largest finite number.
[[gnu::always_inline]] inline Halves to_half(Floats v) {
    v = v > 65504.0f ? all(65504.0f) : v;
    v = v < -65504.0f ? all(-65504.0f) : v;
#if defined(__AVX512F__)
    return (Halves)_mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
    return (Halves)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
    const Words bits = (Words)v, magnitude = bits & 0x7fffffff;
    // Below 2^-14 the sum with 0.5 leaves the subnormal's bits, rounded, at the end of its mantissa.
    const Words small = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
    const Words normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const Words is_small = (Words)(magnitude < 0x38800000), is_nan = (Words)(magnitude > 0x7f800000);
    const Words half = (small & is_small) | (normal & ~is_small & ~is_nan) | (0x7e00 & is_nan);
    return __builtin_convertvector(half | (bits >> 16 & 0x8000), Halves);
#endif
}

struct Half {
    using Element = uint16_t;
    static Floats read(const uint16_t* from) { return from_half(load<Halves>(from)); }
    static Floats read_first(const uint16_t* from, int count) { return from_half(load_first<Halves>(from, count)); }
    static void write(uint16_t* to, Floats v) { store(to, to_half(v)); }
    static void write_first(uint16_t* to, Floats v, int count) { store_first(to, to_half(v), count); }
};

[[gnu::always_inline]] inline Floats from_bfloat(Halves h) {
#if defined(__AVX512F__)  // GCC converts in halves
    return (Floats)((Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#else
    return (Floats)(__builtin_convertvector(h, Words) << 16);
#endif
}

// To the nearest, ties to even.
[[gnu::always_inline]] inline Halves to_bfloat(Floats v) {
    const Words bits = (Words)v;
    const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const Words is_nan = (Words)((bits & 0x7fffffff) > 0x7f800000);
    return __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), Halves);
}

struct Bfloat {
    using Element = uint16_t;
    static Floats read(const uint16_t* from) { return from_bfloat(load<Halves>(from)); }
    static Floats read_first(const uint16_t* from, int count) { return from_bfloat(load_first<Halves>(from, count)); }
    static void write(uint16_t* to, Floats v) { store(to, to_bfloat(v)); }
    static void write_first(uint16_t* to, Floats v, int count) { store_first(to, to_bfloat(v), count); }
};

// --- functions ---------------------------------------------------------------------------------------------

// e^x within 2 units in the last place. x counts as at most 88.7; below -87.3 the result is 0. A NaN stays one.
[[gnu::always_inline]] inline Floats exponential(Floats x) {
    constexpr float kToInteger = 0x1.8p23f;  // added and taken away again, it rounds
    Floats bounded = x > 88.7f ? all(88.7f) : x;
    bounded = bounded < -88.0f ? all(-88.0f) : bounded;
    const Floats n = (bounded * 1.44269504f + kToInteger) - kToInteger;
    const Floats r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts (Cephes, expf)
    Floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Floats scaled = (Floats)((Ints)p + (__builtin_convertvector(n, Ints) << 23));
    return x < -87.3f ? all(0.0f) : scaled;
}

}  // namespace
}  // namespace pilotlight
