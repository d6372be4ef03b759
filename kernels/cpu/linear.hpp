// Linear layers, for any number of rows of x: out = x times weight transposed.
//
// A tile is a few rows of x by 4 rows of weights, its sums in registers:
//
//              k ->
//     w[0] . . . . . . . .        each block of w is read, and made fp32, once for all rows of x in the tile;
//     w[1] . . . . . . . .        each block of x once for all 4 rows of w
//     w[2] . . . . . . . .
//     w[3] . . . . . . . .
//
// A piece of work is a band of weight rows by a block of rows of x. It takes as many rows of x as fit into the
// first-level cache, goes down the band with them, 4 weight rows at a time, and then takes the next rows of x. So with
// few rows of x a step streams the weights once, in order; with many, the band stays in the second-level cache. Rows of
// x that are too long for the cache are taken in chunks along k, and the sums wait in memory from one chunk to the
// next. An output sums its products in the same order in every tile, so it is the same in every batch.
#pragma once

#include "rows.hpp"
#include "weights.hpp"

namespace pilotlight {
namespace {

constexpr int kFewRows = 16;  // of x: up to here, reading the weights is what takes time
constexpr int64_t kFewBandBytes = 512 << 10;  // of weights in a piece then, at most: memory likes long reads
constexpr int64_t kLeastBandBytes = 32 << 10;  // and at least
constexpr int kPiecesOfThread = 8;  // between those two: enough for the threads to end together
constexpr int64_t kBandBytes = 64 << 10;  // of weights in a piece with more rows of x
constexpr int kBlockRows = 128;  // rows of x in a piece, at most
constexpr int kNearRows = 18;  // rows of x that go down a band together, at most
constexpr int64_t kNearBytes = 32 << 10;  // of those rows in a chunk
constexpr int kQuads = 16;  // quads of weight rows whose sums wait between two chunks
constexpr int kBand = 16;  // a band has a multiple of it in weight rows: a cache line of each row of out

// Four rows of a matrix. Past the last row it is repeated, and what comes of that is not stored.
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

// Rows of packed x, and the columns of them that are worked on: [begin, end).
struct Chunk {
    const char* packed;
    int64_t row_bytes;
    int rows;
    int columns;
    int begin, end;
};

// Where products go: row m and the weight `first` + n to out[m * stride + n], with bias[n].
struct Outputs {
    float* out;
    int64_t stride;
    const float* bias;  // or NULL
    int first, count;  // weight rows
    int end;  // one past the last that may be read

    [[gnu::always_inline]] void put(int row, int n, Four y) const {
        float* const to = out + row * stride + n;
        if (n + 4 <= count) {
            store(to, bias ? y + load<Four>(bias + n) : y);
        } else {
            store_first(to, bias ? y + load_first<Four>(bias + n, count - n) : y, count - n);
        }
    }
};

// The products of `rows` rows of packed x, from `first` on, with a quad of weight rows. A chunk's sums go on from those
// in `kept` and are left there; the last chunk's go to the outputs from n on.
template <class Weights, int rows, bool fetch>
[[gnu::always_inline]] inline void multiply(const Chunk& chunk, int first, const Quad<Weights>& quad,
                                            typename Weights::Sum (*kept)[4], const Outputs& outputs, int n) {
    constexpr int block = 2 * kWidth;
    using Packed = typename Weights::Packed;
    using Element = typename Weights::Element;
    const Packed* x[rows];
    PL_UNROLL
    for (int m = 0; m < rows; ++m) {
        x[m] = reinterpret_cast<const Packed*>(chunk.packed + (first + m) * chunk.row_bytes);
    }
    const int whole = chunk.end / block * block;
    Element rest[4][block];  // made first: a call in between would drive the sums out of their registers
    if (whole < chunk.end) {
        memset(rest, 0, sizeof rest);
        PL_UNROLL
        for (int i = 0; i < 4; ++i) {
            memcpy(rest[i], quad.row[i] + whole, static_cast<size_t>(chunk.end - whole) * sizeof(Element));
        }
    }
    typename Weights::Sum sum[rows][4] = {};
    if (chunk.begin > 0) {
        PL_UNROLL
        for (int m = 0; m < rows; ++m) {
            PL_UNROLL
            for (int i = 0; i < 4; ++i) {
                sum[m][i] = kept[first + m][i];
            }
        }
    }
    for (int k = chunk.begin; k < whole; k += block) {
        decltype(Weights::x(x[0])) values[rows];
        PL_UNROLL
        for (int m = 0; m < rows; ++m) {
            values[m] = Weights::x(x[m] + k);
        }
        PL_UNROLL
        for (int i = 0; i < 4; ++i) {
            if constexpr (fetch) {
                __builtin_prefetch(quad.row[i] + k + 4 * chunk.columns, 0, 3);  // the next quad's
            }
            const auto w = Weights::weights(quad.row[i] + k);
            PL_UNROLL
            for (int m = 0; m < rows; ++m) {
                Weights::add(sum[m][i], values[m], w);
            }
        }
    }
    if (whole < chunk.end) {
        PL_UNROLL
        for (int i = 0; i < 4; ++i) {
            PL_UNROLL
            for (int m = 0; m < rows; ++m) {
                Weights::add(sum[m][i], Weights::x(x[m] + whole), Weights::weights(rest[i]));
            }
        }
    }
    PL_UNROLL
    for (int m = 0; m < rows; ++m) {
        if (chunk.end == chunk.columns) {
            outputs.put(first + m, n, Weights::finish(sum[m], Weights::scale(x[m], chunk.columns), quad.scale));
        } else {
            PL_UNROLL
            for (int i = 0; i < 4; ++i) {
                kept[first + m][i] = sum[m][i];
            }
        }
    }
}

// The products of a chunk's rows with the weight rows of `outputs`, in tiles of `tile` rows and then of one less.
// One function for all tiles of a size: a call for each tile costs a fifth of the memory's rate.
template <class Weights, int tile>
[[gnu::noinline]] void multiply_band(const Chunk& chunk, const PlMatrix& weight, const Outputs& outputs,
                                     typename Weights::Sum (*kept)[kNearRows][4]) {
    constexpr int less = tile > 1 ? tile - 1 : 1;
    const int tiles = (chunk.rows + tile - 1) / tile, full = chunk.rows - tiles * (tile - 1);
    for (int n = 0; n < outputs.count; n += 4, ++kept) {
        const Quad<Weights> quad(weight, outputs.first + n, outputs.end);
        multiply<Weights, tile, true>(chunk, 0, quad, *kept, outputs, n);
        int row = tile;
        for (int t = 1; t < full; ++t, row += tile) {
            multiply<Weights, tile, false>(chunk, row, quad, *kept, outputs, n);
        }
        for (; row < chunk.rows; row += less) {
            multiply<Weights, less, false>(chunk, row, quad, *kept, outputs, n);
        }
    }
}

// Picks the tile: the chunk's rows are shared out as evenly as tiles allow.
template <class Weights>
inline void multiply_band(const Chunk& chunk, const PlMatrix& weight, const Outputs& outputs,
                          typename Weights::Sum (*kept)[kNearRows][4]) {
    constexpr int most = Weights::kTileRows;
    const int tiles = (chunk.rows + most - 1) / most;
    switch ((chunk.rows + tiles - 1) / tiles) {
        case 1:
            return multiply_band<Weights, 1>(chunk, weight, outputs, kept);
        case 2:
            return multiply_band<Weights, most < 2 ? most : 2>(chunk, weight, outputs, kept);
        case 3:
            return multiply_band<Weights, most < 3 ? most : 3>(chunk, weight, outputs, kept);
        case 4:
            return multiply_band<Weights, most < 4 ? most : 4>(chunk, weight, outputs, kept);
        case 5:
            return multiply_band<Weights, most < 5 ? most : 5>(chunk, weight, outputs, kept);
        default:
            return multiply_band<Weights, most>(chunk, weight, outputs, kept);
    }
}

// Columns of a chunk, so that `rows` rows of it fit into kNearBytes.
inline int chunk_columns(int rows, int columns, int64_t row_bytes) {
    const int chunks = static_cast<int>((rows * row_bytes + kNearBytes - 1) / kNearBytes);
    return chunks == 1 ? columns : ((columns + chunks - 1) / chunks + 63) / 64 * 64;
}

// The products of at most kNearRows rows of x with the weight rows of `outputs`, at most 4 * kQuads, chunk by chunk.
template <class Weights>
inline void multiply_near(const char* packed, int64_t row_bytes, int rows, const PlMatrix& weight,
                          const Outputs& outputs) {
    alignas(64) typename Weights::Sum kept[kQuads][kNearRows][4];
    const int columns = weight.columns, step = chunk_columns(rows, columns, row_bytes);
    for (int begin = 0; begin < columns; begin += step) {
        const int end = columns < begin + step ? columns : begin + step;
        multiply_band<Weights>({packed, row_bytes, rows, columns, begin, end}, weight, outputs, kept);
    }
}

// How the work is cut: bands of outputs by blocks of rows, and a block into the rows that are near at a time.
struct Cut {
    int rows, outputs;
    int band, bands;
    int block, blocks;
    int near;

    Cut(int threads, int rows, int outputs, int64_t weight_bytes) : rows(rows), outputs(outputs) {
        const int64_t share = outputs * weight_bytes / (threads * kPiecesOfThread);
        const int64_t few = share < kLeastBandBytes ? kLeastBandBytes : share < kFewBandBytes ? share : kFewBandBytes;
        const int64_t wanted = (rows <= kFewRows ? few : kBandBytes) / weight_bytes / kBand * kBand;
        band = wanted > kBand ? static_cast<int>(wanted) : kBand;
        bands = (outputs + band - 1) / band;
        blocks = (rows + kBlockRows - 1) / kBlockRows;
        block = (rows + blocks - 1) / blocks;
        near = even(block, kNearRows);
    }

    // The size of a part when `count` is cut evenly into parts of at most `most`.
    static int even(int count, int most) {
        const int parts = (count + most - 1) / most;
        return (count + parts - 1) / parts;
    }

    // Calls work(first row, rows, first output, outputs) for the rows that are near and 4 * kQuads outputs of the band.
    template <class Work>
    void each_near(int piece, const Work& work) const {
        const int first = piece % bands * band, first_row = piece / bands * block;
        const int end = outputs < first + band ? outputs : first + band;
        const int end_row = rows < first_row + block ? rows : first_row + block;
        for (int row = first_row; row < end_row; row += near) {
            const int count = end_row - row < near ? end_row - row : near;
            for (int n = first; n < end; n += 4 * kQuads) {
                work(row, count, n, end - n < 4 * kQuads ? end - n : 4 * kQuads);
            }
        }
    }
};

template <class Weights>
inline void pack_rows(Team& team, const float* x, int rows, int columns, char* packed) {
    const int64_t row_bytes = Weights::row_bytes(columns);
    each_row(team, rows, columns, [&](int row) {
        Weights::pack(x + static_cast<int64_t>(row) * columns, columns,
                      reinterpret_cast<typename Weights::Packed*>(packed + row * row_bytes));
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
    const Cut cut(team.threads(), rows, outputs, columns * static_cast<int64_t>(sizeof(typename Weights::Element)));
    team.each(cut.bands * cut.blocks, [&](int piece, int) {
        cut.each_near(piece, [&](int row, int near, int n, int count) {
            float* const out = op.out + static_cast<int64_t>(row) * outputs + n;
            multiply_near<Weights>(packed + row * row_bytes, row_bytes, near, weight,
                                   {out, outputs, op.bias ? op.bias + n : nullptr, n, count, outputs});
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
