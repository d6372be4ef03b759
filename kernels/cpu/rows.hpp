// The ops that take one row at a time: embed, norm, gather, rope_and_cache.
// Together because each is a page of code that moves a row and does little to it.
#pragma once

#include <math.h>

#include "limits.hpp"
#include "team.hpp"
#include "vector.hpp"

namespace pilotlight {
namespace {

constexpr int64_t kPieceFloats = 16384;  // a piece of less is not worth a claim

// Rows of `columns` floats that make a piece.
inline int rows_of_piece(int columns) {
    const int64_t rows = kPieceFloats / (columns > 0 ? columns : 1);
    return rows > 1 ? static_cast<int>(rows) : 1;
}

// Calls work(row) for each of `rows`.
template <class Work>
inline void each_row(Team& team, int rows, int columns, const Work& work) {
    const int step = rows_of_piece(columns);
    team.each((rows + step - 1) / step, [&](int piece, int) {
        const int end = rows < (piece + 1) * step ? rows : (piece + 1) * step;
        for (int row = piece * step; row < end; ++row) {
            work(row);
        }
    });
}

template <class Number>
inline void read_row(const void* data, int64_t row, int columns, float* out) {
    const auto* const from = static_cast<const typename Number::Element*>(data) + row * columns;
    int i = 0;
    for (; i + kWidth <= columns; i += kWidth) {
        store(out + i, Number::read(from + i));
    }
    store_first(out + i, Number::read_first(from + i, columns - i), columns - i);
}

inline void read_row_int8(const PlMatrix& table, int64_t row, float* out) {
    const auto* const from = static_cast<const int8_t*>(table.data) + row * table.columns;
    const float scale = table.scale[row];
    for (int i = 0; i < table.columns; ++i) {
        out[i] = static_cast<float>(from[i]) * scale;
    }
}

void embed(Team& team, const PlEmbed& op) {
    const PlMatrix& table = op.table;
    each_row(team, *op.rows, table.columns, [&](int i) {
        const int last = table.rows - 1;
        const int token = op.tokens[i] < 0 ? 0 : op.tokens[i] > last ? last : op.tokens[i];
        float* const out = op.out + static_cast<int64_t>(i) * table.columns;
        switch (table.type) {
            case PL_F32:
                return read_row<Float>(table.data, token, table.columns, out);
            case PL_F16:
                return read_row<Half>(table.data, token, table.columns, out);
            case PL_BF16:
                return read_row<Bfloat>(table.data, token, table.columns, out);
            default:
                return read_row_int8(table, token, out);
        }
    });
}

void norm(Team& team, const PlNorm& op) {
    each_row(team, *op.rows, op.columns, [&](int row) {
        const int64_t offset = static_cast<int64_t>(row) * op.columns;
        const float* const x = op.x + offset;
        float* const residual = op.residual ? op.residual + offset : nullptr;
        const float* const s = residual ? residual : x;
        float* const out = op.out + offset;
        const int whole = op.columns / kWidth * kWidth, rest = op.columns - whole;
        // Two sums, as one would wait for each addition before the next.
        Floats squares[2] = {};
        for (int i = 0; i < whole; i += kWidth) {
            Floats v = load<Floats>(x + i);
            if (residual) {
                v += load<Floats>(residual + i);
                store(residual + i, v);
            }
            squares[i / kWidth % 2] += v * v;
        }
        Floats last = load_first<Floats>(x + whole, rest);
        if (residual) {
            last += load_first<Floats>(residual + whole, rest);
            store_first(residual + whole, last, rest);
        }
        squares[0] += last * last;
        const float mean = sum(squares[0] + squares[1]) / static_cast<float>(op.columns);
        const Floats scale = all(1.0f / sqrtf(mean + op.eps));
        for (int i = 0; i < whole; i += kWidth) {
            store(out + i, load<Floats>(s + i) * scale * load<Floats>(op.weight + i));
        }
        store_first(out + whole, last * scale * load_first<Floats>(op.weight + whole, rest), rest);
    });
}

void gather(Team& team, const PlGather& op) {
    each_row(team, *op.rows, op.columns, [&](int i) {
        memcpy(op.out + static_cast<int64_t>(i) * op.columns, op.x + static_cast<int64_t>(op.indices[i]) * op.columns,
               static_cast<size_t>(op.columns) * sizeof(float));
    });
}

// Turns the pairs (x[i], x[i + half]) of one head by the angles of its position; what is not rotary is copied.
inline void rotate(const float* x, const float* cos, const float* sin, int half, int head_dim, float* out) {
    int i = 0;
    for (; i + kWidth <= half; i += kWidth) {
        const Floats first = load<Floats>(x + i), second = load<Floats>(x + half + i);
        const Floats c = load<Floats>(cos + i), s = load<Floats>(sin + i);
        store(out + i, first * c - second * s);
        store(out + half + i, second * c + first * s);
    }
    if (i < half) {
        const int rest = half - i;
        const Floats first = load_first<Floats>(x + i, rest), second = load_first<Floats>(x + half + i, rest);
        const Floats c = load_first<Floats>(cos + i, rest), s = load_first<Floats>(sin + i, rest);
        store_first(out + i, first * c - second * s, rest);
        store_first(out + half + i, second * c + first * s, rest);
    }
    memcpy(out + 2 * half, x + 2 * half, static_cast<size_t>(head_dim - 2 * half) * sizeof(float));
}

// One head's key and value of a token into its tiles, at `offset` of the page.
template <class Number>
inline void write_tiles(const float* key, const float* value, void* tiles, int offset, int head_dim, int page_size) {
    using Element = typename Number::Element;
    auto* const keys = static_cast<Element*>(tiles);  // [head_dim, page_size]
    Element* const values = keys + static_cast<int64_t>(head_dim) * page_size + static_cast<int64_t>(offset) * head_dim;
    const auto write_part = [&](int i, int count, Floats k) {
        Element column[kWidth];
        Number::write(column, k);
        for (int j = 0; j < count; ++j) {
            keys[static_cast<int64_t>(i + j) * page_size + offset] = column[j];
        }
    };
    int i = 0;
    for (; i + kWidth <= head_dim; i += kWidth) {
        Number::write(values + i, load<Floats>(value + i));
        write_part(i, kWidth, load<Floats>(key + i));
    }
    if (i < head_dim) {
        const int count = head_dim - i;
        Number::write_first(values + i, load_first<Floats>(value + i, count), count);
        write_part(i, count, load_first<Floats>(key + i, count));
    }
}

inline int64_t bytes_of(PlType type) { return type == PL_F32 ? 4 : 2; }

// Where the tiles of a head begin, its keys' first.
inline char* tiles_of(const PlCache& cache, int64_t page, int layer, int head) {
    const int64_t tile = static_cast<int64_t>(cache.page_size) * cache.head_dim * bytes_of(cache.type);
    return static_cast<char*>(cache.pages) + ((page * cache.layers + layer) * cache.kv_heads + head) * 2 * tile;
}

void rope_and_cache(Team& team, const PlRopeAndCache& op) {
    const PlCache& cache = op.cache;
    const int dim = cache.head_dim, half = cache.rotary_dim / 2;
    const int columns = (cache.heads + 2 * cache.kv_heads) * dim;
    each_row(team, *op.rows, columns, [&](int row) {
        const float* const q = op.qkv + static_cast<int64_t>(row) * columns;
        const float* const k = q + cache.heads * dim;
        const float* const v = k + cache.kv_heads * dim;
        const float* const cos = op.cos + static_cast<int64_t>(op.positions[row]) * half;
        const float* const sin = op.sin + static_cast<int64_t>(op.positions[row]) * half;
        float* const out = op.q + static_cast<int64_t>(row) * cache.heads * dim;
        for (int head = 0; head < cache.heads; ++head) {
            rotate(q + head * dim, cos, sin, half, dim, out + head * dim);
        }
        if (op.slots[row] < 0) {
            return;
        }
        const int page = op.slots[row] / cache.page_size, offset = op.slots[row] % cache.page_size;
        for (int head = 0; head < cache.kv_heads; ++head) {
            float key[kMaxHeadDim];
            rotate(k + head * dim, cos, sin, half, dim, key);
            void* const tiles = tiles_of(cache, page, op.layer, head);
            const float* const value = v + head * dim;
            switch (cache.type) {
                case PL_F32:
                    write_tiles<Float>(key, value, tiles, offset, dim, cache.page_size);
                    break;
                case PL_F16:
                    write_tiles<Half>(key, value, tiles, offset, dim, cache.page_size);
                    break;
                default:
                    write_tiles<Bfloat>(key, value, tiles, offset, dim, cache.page_size);
            }
        }
    });
}

}  // namespace
}  // namespace pilotlight
