// How a linear layer multiplies each type of weight: blocks of a row of weights by blocks of a packed row of x.
// Apart from the loops over rows, which are the same for all types.
//
// kTileRows rows of x are multiplied by 4 rows of weights at a time: as many sums as leave registers for the operands.
// Both are read along k in blocks of 2 * kWidth. The sum of an output is a vector, whose lanes are added up at the end.
// A packed row is filled up with zeros to a whole number of blocks, and kRowScale bytes follow it.
//
//   bf16   read as 32-bit words of two weights: shifted left, a word is the one in fp32; masked, the other. So packed x
//          has the even numbers of a block first and then the odd ones. Exact products of fp32 x. On a CPU that
//          multiplies bf16, x is rounded to it: |error| <= 2^-9 of each |x|, for twice the products an instruction.
//   fp16   widened by the CPU; exact products of fp32 x.
//   int8   widened to 16 bits; x rounded to 16 bits, with a scale for each row: |error| <= 2^-16 of the row's largest
//          |x|. With more than 512 * kWidth columns it grows as they do, since a lane's sum must fit in 32 bits.
#pragma once

#include "vector.hpp"

namespace pilotlight {
namespace {

constexpr int kRowScale = 64;  // bytes: one fp32, which int8 needs; more keeps rows aligned

struct FloatBlock {
    Floats first, second;
};

inline int64_t blocks_of(int columns) { return (columns + 2 * kWidth - 1) / (2 * kWidth); }

// What the three types share that multiply fp32.
struct FloatProducts {
    static constexpr int kTileRows = kWidth == 16 ? 4 : 2;
    using Sum = Floats;
    using Packed = float;

    static FloatBlock x(const float* from) { return {load<Floats>(from), load<Floats>(from + kWidth)}; }
    [[gnu::always_inline]] static void add(Sum& sum, const FloatBlock& x, const FloatBlock& w) {
        sum += x.first * w.first;
        sum += x.second * w.second;
    }
    [[gnu::always_inline]] static Four finish(const Sum* s, float, Four) { return sums(s[0], s[1], s[2], s[3]); }

    static int64_t row_bytes(int columns) { return blocks_of(columns) * 2 * kWidth * 4 + kRowScale; }
    static void pack(const float* x, int columns, float* out) {
        memcpy(out, x, static_cast<size_t>(columns) * 4);
        memset(out + columns, 0, static_cast<size_t>(blocks_of(columns) * 2 * kWidth - columns) * 4);
    }
    static float scale(const float*, int) { return 1.0f; }
};

struct FloatWeights : FloatProducts {
    using Element = float;
    [[gnu::always_inline]] static FloatBlock weights(const float* from) { return x(from); }
};

struct HalfWeights : FloatProducts {
    using Element = uint16_t;
    [[gnu::always_inline]] static FloatBlock weights(const uint16_t* from) {
        return {Half::read(from), Half::read(from + kWidth)};
    }
};

#if defined(__AVX512BF16__)

struct BfloatWeights {
    static constexpr int kTileRows = 6;
    using Element = uint16_t;
    using Sum = Floats;
    using Packed = uint16_t;
    using Pairs = __m512bh;

    [[gnu::always_inline]] static Pairs x(const uint16_t* from) { return load<Pairs>(from); }
    [[gnu::always_inline]] static Pairs weights(const uint16_t* from) { return load<Pairs>(from); }
    [[gnu::always_inline]] static void add(Sum& sum, Pairs x, Pairs w) {
        sum = (Floats)_mm512_dpbf16_ps((__m512)sum, x, w);
    }
    [[gnu::always_inline]] static Four finish(const Sum* s, float, Four) { return sums(s[0], s[1], s[2], s[3]); }

    static int64_t row_bytes(int columns) { return blocks_of(columns) * 2 * kWidth * 2 + kRowScale; }
    static void pack(const float* x, int columns, uint16_t* out) {
        int i = 0;
        for (; i + kWidth <= columns; i += kWidth) {
            Bfloat::write(out + i, load<Floats>(x + i));
        }
        const int64_t end = blocks_of(columns) * 2 * kWidth;
        memset(out + i, 0, static_cast<size_t>(end - i) * 2);
        Bfloat::write_first(out + i, load_first<Floats>(x + i, columns - i), columns - i);
    }
    static float scale(const uint16_t*, int) { return 1.0f; }
};

#else

struct BfloatWeights : FloatProducts {
    using Element = uint16_t;
    [[gnu::always_inline]] static FloatBlock weights(const uint16_t* from) {
        const Words pairs = load<Words>(from);
        return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000)};
    }
    static void pack(const float* x, int columns, float* out) {
        const int whole = columns / (2 * kWidth) * 2 * kWidth;
        for (int i = 0; i < whole; i += 2 * kWidth) {
            for (int j = 0; j < kWidth; ++j) {
                out[i + j] = x[i + 2 * j];
                out[i + kWidth + j] = x[i + 2 * j + 1];
            }
        }
        if (whole < columns) {
            memset(out + whole, 0, 2 * kWidth * 4);
            for (int i = 0; i < columns - whole; ++i) {
                out[whole + i / 2 + i % 2 * kWidth] = x[whole + i];
            }
        }
    }
};

#endif

struct IntWeights {
    static constexpr int kTileRows = kWidth == 16 ? 4 : 2;
    using Element = int8_t;
    using Sum = Ints;
    using Packed = int16_t;
    using Shorts = int16_t __attribute__((vector_size(kWidth * 4)));
    using Bytes = int8_t __attribute__((vector_size(kWidth * 2)));

    [[gnu::always_inline]] static Shorts x(const int16_t* from) { return load<Shorts>(from); }
    [[gnu::always_inline]] static Shorts weights(const int8_t* from) {
#if defined(__AVX512BW__)  // GCC converts in halves
        return (Shorts)_mm512_cvtepi8_epi16(load<__m256i>(from));
#else
        return __builtin_convertvector(load<Bytes>(from), Shorts);
#endif
    }
    // A lane takes the products of two neighbours.
    [[gnu::always_inline]] static void add(Sum& sum, Shorts x, Shorts w) {
#if defined(__AVX512VNNI__)
        sum = (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#elif defined(__AVX512BW__)
        sum += (Ints)_mm512_madd_epi16((__m512i)x, (__m512i)w);
#elif defined(__AVX2__)
        sum += (Ints)_mm256_madd_epi16((__m256i)x, (__m256i)w);
#else  // on x86 too, so that its tests run what arm64 runs
        const Ints low = (Ints)x << 16 >> 16, other = (Ints)w << 16 >> 16;
        sum += low * other + ((Ints)x >> 16) * ((Ints)w >> 16);
#endif
    }
    [[gnu::always_inline]] static Four finish(const Sum* s, float x_scale, Four w_scale) {
        return sums(__builtin_convertvector(s[0], Floats), __builtin_convertvector(s[1], Floats),
                    __builtin_convertvector(s[2], Floats), __builtin_convertvector(s[3], Floats)) *
               (w_scale * x_scale);
    }

    static int64_t row_bytes(int columns) { return blocks_of(columns) * 2 * kWidth * 2 + kRowScale; }
    static void pack(const float* x, int columns, int16_t* out) {
        const int64_t end = blocks_of(columns) * 2 * kWidth;
        memset(out + columns, 0, static_cast<size_t>(end - columns) * 2);
        // A lane adds up two products of at most 128 * steps a block, and is to stay below 2^31.
        const int64_t room = (int64_t{1} << 31) / (2 * 128 * blocks_of(columns)) - 1;
        const float steps = room > 32767 ? 32767.0f : static_cast<float>(room);
        const float bound = largest_magnitude(x, columns);
        const bool finite = bound <= 0x1.fffffep127f;
        const float inverse = steps / bound;  // infinite for the smallest numbers: they count as zeros
        const float scale = !finite ? __builtin_nanf("") : inverse <= 0x1.fffffep127f ? bound / steps : 0;
        memcpy(out + end, &scale, sizeof scale);
        if (!(scale > 0)) {  // what is multiplied by a NaN is one too
            memset(out, 0, static_cast<size_t>(columns) * 2);
            return;
        }
        int i = 0;
        for (; i + kWidth <= columns; i += kWidth) {
            store(out + i, rounded(load<Floats>(x + i) * inverse));
        }
        store_first(out + i, rounded(load_first<Floats>(x + i, columns - i) * inverse), columns - i);
    }
    static float scale(const int16_t* packed, int columns) {
        float scale;
        memcpy(&scale, packed + blocks_of(columns) * 2 * kWidth, sizeof scale);
        return scale;
    }

private:
    using Short = int16_t __attribute__((vector_size(kWidth * 2)));

    static Short rounded(Floats v) {
        const Floats whole = (v + 0x1.8p23f) - 0x1.8p23f;
        return __builtin_convertvector(__builtin_convertvector(whole, Ints), Short);
    }

    // Compared as integers, whose order is that of magnitudes, with NaNs above infinity.
    static float largest_magnitude(const float* x, int columns) {
        Ints most = {};
        int i = 0;
        for (; i + kWidth <= columns; i += kWidth) {
            const Ints v = load<Ints>(x + i) & 0x7fffffff;
            most = v > most ? v : most;
        }
        const Ints v = load_first<Ints>(x + i, columns - i) & 0x7fffffff;
        most = v > most ? v : most;
        int32_t bits = 0;
        for (int j = 0; j < kWidth; ++j) {
            bits = most[j] > bits ? most[j] : bits;
        }
        float bound;
        memcpy(&bound, &bits, sizeof bound);
        return bound;
    }
};

}  // namespace
}  // namespace pilotlight
