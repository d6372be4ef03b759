// Linear layers, for any number of rows of x: out = x times weight transposed.
//
// A tile is kTileRows rows of x by 4 rows of weights, its sums in registers:
//
//              k ->
//     w[0] . . . . . . . .        each block of w is read, and made fp32, once for all rows of x in the tile;
//     w[1] . . . . . . . .        each block of x once for all 4 rows of w
//     w[2] . . . . . . . .
//     w[3] . . . . . . . .
//
// A piece of work is a band of weights by a block of rows of x. It takes as many rows at a time as stay in the
// first-level cache, and walks down the band with them, 4 weights after 4 weights. So with few rows of x a step streams
// the weights once, in order; with many, the band stays in the second-level cache meanwhile. An output is the sum of
// one row's products in the same order in every tile, hence the same in every batch.
#pragma once

#include "team.hpp"
#include "weights.hpp"

namespace pilotlight {
namespace {

constexpr int kTileRows = kWidth == 16 ? 4 : 2;  // with 4 weights: as many sums as leave registers for the operands
constexpr int kFewRows = 16;
constexpr int64_t kFewBandBytes = 32 << 10;  // of weights in a piece with few rows of x
constexpr int64_t kBandBytes = 64 << 10;  // with many
constexpr int kBlockRows = 128;  // rows of x in a piece, at most
constexpr int64_t kNearBytes = 24 << 10;  // of x that are walked down a band with
constexpr int kBand = 16;  // weights in a band are a multiple of it: a cache line of each row of out

// Rows of one matrix, four at a time; past the last it is repeated, and what comes of it is not stored.
template <class Weights>
struct Quad {
    const typename Weights::Element* row[4];
    Four scale;  // int8 only

    Quad(const PlMatrix& matrix, int first, int end) : scale{} {
        const auto* const data = static_cast<const typename Weights::Element*>(matrix.data);
        for (int i = 0; i < 4; ++i) {
            const int64_t index = first + i < end ? first + i : end - 1;
            row[i] = data + index * matrix.columns;
            if (matrix.scale) {
                scale[i] = matrix.scale[index];
            }
        }
    }
};

// The products of `rows` rows of packed x with a quad of weights.
template <class Weights, int rows, bool first_use>
[[gnu::always_inline]] inline void multiply(const char* packed, int64_t row_bytes, const Quad<Weights>& quad,
                                            int columns, Four* out) {
    constexpr int block = 2 * kWidth;
    using Packed = typename Weights::Packed;
    using Element = typename Weights::Element;
    const Packed* x[rows];
    PL_UNROLL
    for (int m = 0; m < rows; ++m) {
        x[m] = reinterpret_cast<const Packed*>(packed + m * row_bytes);
    }
    const int whole = columns / block * block;
    Element rest[4][block];  // made first: a call in between would drive the sums out of their registers
    if (whole < columns) {
        memset(rest, 0, sizeof rest);
        PL_UNROLL
        for (int n = 0; n < 4; ++n) {
            memcpy(rest[n], quad.row[n] + whole, static_cast<size_t>(columns - whole) * sizeof(Element));
        }
    }
    typename Weights::Sum sum[rows][4] = {};
    for (int k = 0; k < whole; k += block) {
        decltype(Weights::x(x[0])) values[rows];
        PL_UNROLL
        for (int m = 0; m < rows; ++m) {
            values[m] = Weights::x(x[m] + k);
        }
        PL_UNROLL
        for (int n = 0; n < 4; ++n) {
            if constexpr (first_use) {
                __builtin_prefetch(quad.row[n] + k + 4 * columns, 0, 3);  // the next quad's
            }
            const auto w = Weights::weights(quad.row[n] + k);
            PL_UNROLL
            for (int m = 0; m < rows; ++m) {
                Weights::add(sum[m][n], values[m], w);
            }
        }
    }
    if (whole < columns) {
        PL_UNROLL
        for (int n = 0; n < 4; ++n) {
            PL_UNROLL
            for (int m = 0; m < rows; ++m) {
                Weights::add(sum[m][n], Weights::x(x[m] + whole), Weights::weights(rest[n]));
            }
        }
    }
    PL_UNROLL
    for (int m = 0; m < rows; ++m) {
        out[m] = Weights::finish(sum[m], Weights::scale(x[m], columns), quad.scale);
    }
}

template <class Weights, bool first_use>
inline void multiply(const char* packed, int64_t row_bytes, int rows, const Quad<Weights>& quad, int columns,
                     Four* out) {
    switch (rows) {
        case 1:
            return multiply<Weights, 1, first_use>(packed, row_bytes, quad, columns, out);
        case 2:
            return multiply<Weights, 2, first_use>(packed, row_bytes, quad, columns, out);
        case 3:
            return multiply<Weights, kTileRows < 3 ? 1 : 3, first_use>(packed, row_bytes, quad, columns, out);
        default:
            return multiply<Weights, kTileRows < 4 ? 1 : 4, first_use>(packed, row_bytes, quad, columns, out);
    }
}

template <class Weights>
inline void multiply(const char* packed, int64_t row_bytes, int rows, const Quad<Weights>& quad, int columns,
                     bool first_use, Four* out) {
    if (first_use) {
        multiply<Weights, true>(packed, row_bytes, rows, quad, columns, out);
    } else {
        multiply<Weights, false>(packed, row_bytes, rows, quad, columns, out);
    }
}

// How the work is cut: bands of outputs by blocks of rows, and these into as many as are near at a time.
struct Cut {
    int rows, outputs;
    int band, bands;
    int block, blocks;
    int near;

    Cut(int rows, int outputs, int64_t weight_bytes, int64_t row_bytes) : rows(rows), outputs(outputs) {
        const int64_t wanted = (rows <= kFewRows ? kFewBandBytes : kBandBytes) / weight_bytes / kBand * kBand;
        band = wanted > kBand ? static_cast<int>(wanted) : kBand;
        bands = (outputs + band - 1) / band;
        near = whole_tiles(static_cast<int>(kNearBytes / row_bytes));
        // Even blocks: none is much smaller than another.
        block = whole_tiles((rows + rows / kBlockRows) / (rows / kBlockRows + 1) + kTileRows - 1);
        blocks = (rows + block - 1) / block;
    }

    static int whole_tiles(int count) { return count > kTileRows ? count / kTileRows * kTileRows : kTileRows; }

    // Calls work(first row, rows, first output, outputs) for the rows that are near, and `step` outputs of the band.
    template <int step, class Work>
    [[gnu::always_inline]] void each_near(int piece, const Work& work) const {
        const int first = piece % bands * band, first_row = piece / bands * block;
        const int end = outputs < first + band ? outputs : first + band;
        const int end_row = rows < first_row + block ? rows : first_row + block;
        for (int row = first_row; row < end_row; row += near) {
            const int count = end_row - row < near ? end_row - row : near;
            for (int n = first; n < end; n += step) {
                work(row, count, n, end - n < step ? end - n : step);
            }
        }
    }
};

template <class Weights>
inline void pack_rows(Team& team, const float* x, int rows, int columns, char* packed) {
    const int64_t row_bytes = Weights::row_bytes(columns);
    const int step = columns > 0 && kPieceFloats / columns > 1 ? static_cast<int>(kPieceFloats / columns) : 1;
    team.each((rows + step - 1) / step, [&](int piece, int) {
        const int end = rows < (piece + 1) * step ? rows : (piece + 1) * step;
        for (int row = piece * step; row < end; ++row) {
            Weights::pack(x + static_cast<int64_t>(row) * columns, columns,
                          reinterpret_cast<typename Weights::Packed*>(packed + row * row_bytes));
        }
    });
}

template <class Weights>
inline void linear_of(Team& team, const PlLinear& op) {
    const PlMatrix& weight = op.weight;
    const int rows = *op.rows, columns = weight.columns, outputs = weight.rows;
    if (rows == 0) {
        return;
    }
    char* const packed = static_cast<char*>(op.packed);
    const int64_t row_bytes = Weights::row_bytes(columns);
    pack_rows<Weights>(team, op.x, rows, columns, packed);
    const Cut cut(rows, outputs, columns * static_cast<int64_t>(sizeof(typename Weights::Element)), row_bytes);
    team.each(cut.bands * cut.blocks, [&](int piece, int) {
        cut.each_near<4>(piece, [&](int first_row, int near, int n, int count) {
            const Quad<Weights> quad(weight, n, outputs);
            const Four bias = op.bias ? load_first<Four>(op.bias + n, count) : Four{};
            for (int m = 0; m < near; m += kTileRows) {
                const int row = first_row + m, tile = near - m < kTileRows ? near - m : kTileRows;
                Four y[kTileRows];
                multiply<Weights>(packed + row * row_bytes, row_bytes, tile, quad, columns, m == 0, y);
                for (int i = 0; i < tile; ++i) {
                    float* const out = op.out + static_cast<int64_t>(row + i) * outputs + n;
                    if (count == 4) {
                        store(out, y[i] + bias);
                    } else {
                        store_first(out, y[i] + bias, count);
                    }
                }
            }
        });
    });
}

void linear(Team& team, const PlLinear& op) {
    switch (op.weight.type) {
        case PL_F32:
            return linear_of<FloatWeights>(team, op);
        case PL_F16:
            return linear_of<HalfWeights>(team, op);
        case PL_BF16:
            return linear_of<BfloatWeights>(team, op);
        default:
            return linear_of<IntWeights>(team, op);
    }
}

}  // namespace
}  // namespace pilotlight
