// A block of attention's rows: queries of one sequence that share a K/V head, and what they gather from its pages.
// Apart from how a batch is cut into blocks, and because it alone knows the layout of a page.
//
// The queries of a sequence that share a K/V head are the rows of a small matrix, token by token:
//
//     row = token * group + query          scores[row][position] = q[row] . key[position]
//
// Positions are taken in chunks of kChunk, with a running softmax over the chunks of a split
// (https://arxiv.org/abs/2205.14135), and splits of kSplit positions are merged one after the other. Chunks and splits
// begin at multiples of their size, so a row's arithmetic depends on its own position and window alone.
//
// Keys lie transposed in their tile: a vector holds one element of kWidth positions, and a score is a lane from
// beginning to end. Values lie as rows: a vector holds kWidth elements of one position.
#pragma once

#include "rows.hpp"

namespace pilotlight {
namespace {

constexpr int kQueries = 48;
constexpr int kChunk = 64;
constexpr int kGroup = 16;  // positions that lie in one page, whatever its size
constexpr int kGroups = kChunk / kGroup;
constexpr int kQueryRows = kWidth == 16 ? 6 : 2;  // by four vectors: as many sums as leave registers for the operands
constexpr float kNothing = -__builtin_inff();

// What the rows of a block have gathered so far: mixed / total is the result.
struct State {
    float most[kQueries];  // the largest score
    float total[kQueries];  // of exp(score - most)
    float mixed[kQueries * kMaxHeadDim];  // [row, padded head_dim] of exp(score - most) * value

    void clear(int rows, int stride) {
        for (int row = 0; row < rows; ++row) {
            most[row] = kNothing;
            total[row] = 0;
        }
        memset(mixed, 0, static_cast<size_t>(rows * stride) * sizeof(float));
    }
};

inline int padded(int head_dim) { return (head_dim + kGroup - 1) / kGroup * kGroup; }

inline float exponential(float x) { return exponential(all(x))[0]; }

// Adds what one split has gathered for a row: `mixed` [stride].
inline void merge_row(float most, float total, const float* mixed, State& state, int row, int stride) {
    if (total == 0) {
        return;  // nothing in it was seen
    }
    float* const sum = state.mixed + row * stride;
    const float higher = most > state.most[row] ? most : state.most[row];
    const float kept = exponential(state.most[row] - higher), added = exponential(most - higher);
    state.total[row] = state.total[row] * kept + total * added;
    for (int i = 0; i < stride; i += kWidth) {
        store(sum + i, load<Floats>(sum + i) * kept + load<Floats>(mixed + i) * added);
    }
    state.most[row] = higher;
}

// One block of rows of one sequence and K/V head.
template <class Number>
struct Block {
    using Element = typename Number::Element;

    const PlAttention& op;
    int sequence, head;
    int group;  // queries that share a K/V head
    int first, rows;  // of the sequence's rows
    int position;  // of the sequence's first new token
    int dim, stride;
    alignas(64) float q[kQueries * kMaxHeadDim];  // [row, stride], scaled
    alignas(64) float scores[kQueries * kChunk];

    // Of the chunk that is worked on: where each group of positions begins in its page.
    const Element* keys[kGroups];
    const Element* values[kGroups];

    Block(const PlAttention& op, int sequence, int head, int first)
        : op(op), sequence(sequence), head(head), group(op.cache.heads / op.cache.kv_heads), first(first),
          dim(op.cache.head_dim), stride(padded(op.cache.head_dim)) {
        const int tokens = op.starts[sequence + 1] - op.starts[sequence];
        rows = tokens * group - first < kQueries ? tokens * group - first : kQueries;
        position = op.lengths[sequence] - tokens;
        for (int row = 0; row < rows; ++row) {
            const float* const from = query(row, op.q);
            for (int i = 0; i < dim; ++i) {
                q[row * stride + i] = from[i] * op.scale;
            }
        }
    }

    template <class Pointer>
    Pointer query(int row, Pointer base) const {
        const int token = op.starts[sequence] + (first + row) / group;
        return base + (static_cast<int64_t>(token) * op.cache.heads + head * group + (first + row) % group) * dim;
    }

    // What a row sees: [begin, end).
    int end(int row) const { return position + (first + row) / group + 1; }
    int begin(int row) const { return op.window > 0 && end(row) > op.window ? end(row) - op.window : 0; }

    // Gathers into `state` what the rows see of the positions [from, to).
    void gather(int from, int to, State& state) {
        state.clear(rows, stride);
        const int low = begin(0) > from ? begin(0) : from, high = end(rows - 1) < to ? end(rows - 1) : to;
        for (int chunk = low / kChunk * kChunk; chunk < high; chunk += kChunk) {
            const int seen_from = low > chunk ? low - chunk : 0;
            const int seen_to = high - chunk < kChunk ? high - chunk : kChunk;
            find_tiles(chunk, seen_from, seen_to);
            for (int row = 0; row < rows; row += kQueryRows) {
                score(row, seen_from, seen_to);
            }
            for (int row = 0; row < rows; ++row) {
                weigh(row, chunk, state);
            }
            for (int row = 0; row < rows; row += kQueryRows) {
                mix(row, seen_from, seen_to, state);
            }
        }
    }

    void find_tiles(int chunk, int seen_from, int seen_to) {
        const int size = op.cache.page_size;
        const int32_t* const pages = op.pages + op.page_starts[sequence];
        for (int i = seen_from / kGroup; i * kGroup < seen_to; ++i) {
            const int from = chunk + i * kGroup, offset = from % size;
            const auto* const tiles =
                reinterpret_cast<const Element*>(tiles_of(op.cache, pages[from / size], op.layer, head));
            keys[i] = tiles + offset;
            values[i] = tiles + (static_cast<int64_t>(size) + offset) * dim;
        }
    }

    // scores[row][...] of `count` rows and `vectors` vectors of positions, from position `at` of the chunk on.
    template <int count, int vectors>
    [[gnu::always_inline]] void score_tile(int row, int at) {
        const Element* from[vectors];
        PL_UNROLL
        for (int v = 0; v < vectors; ++v) {
            const int i = at + v * kWidth;
            from[v] = keys[i / kGroup] + i % kGroup;
        }
        Floats sum[count][vectors] = {};
        const float* const x = q + row * stride;
        for (int i = 0; i < dim; ++i) {
            Floats key[vectors];
            PL_UNROLL
            for (int v = 0; v < vectors; ++v) {
                key[v] = Number::read(from[v] + static_cast<int64_t>(i) * op.cache.page_size);
            }
            PL_UNROLL
            for (int r = 0; r < count; ++r) {
                PL_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    sum[r][v] += x[r * stride + i] * key[v];
                }
            }
        }
        PL_UNROLL
        for (int r = 0; r < count; ++r) {
            PL_UNROLL
            for (int v = 0; v < vectors; ++v) {
                store(scores + (row + r) * kChunk + at + v * kWidth, sum[r][v]);
            }
        }
    }

    template <int count>
    void score_rows(int row, int seen_from, int seen_to) {
        int at = seen_from / kGroup * kGroup;
        for (; at + 4 * kWidth <= kChunk && at + 3 * kWidth < seen_to; at += 4 * kWidth) {
            score_tile<count, 4>(row, at);
        }
        for (; at < seen_to; at += kWidth) {
            score_tile<count, 1>(row, at);
        }
    }

    void score(int row, int seen_from, int seen_to) {
        switch (rows - row) {
            case 1:
                return score_rows<1>(row, seen_from, seen_to);
            case 2:
                return score_rows<2>(row, seen_from, seen_to);
            case 3:
                return score_rows<kQueryRows < 3 ? kQueryRows : 3>(row, seen_from, seen_to);
            case 4:
                return score_rows<kQueryRows < 4 ? kQueryRows : 4>(row, seen_from, seen_to);
            case 5:
                return score_rows<kQueryRows < 5 ? kQueryRows : 5>(row, seen_from, seen_to);
            default:
                return score_rows<kQueryRows>(row, seen_from, seen_to);
        }
    }

    // Turns a row's scores into softmax weights, zero where it does not see, and scales what it has to the new maximum.
    void weigh(int row, int chunk, State& state) {
        float* const weights = scores + row * kChunk;
        const int low = begin(row) > chunk ? begin(row) - chunk : 0;
        const int high = end(row) - chunk < kChunk ? end(row) - chunk : kChunk;
        if (low >= high) {
            memset(weights, 0, kChunk * sizeof(float));
            return;
        }
        for (int i = 0; i < low; ++i) {
            weights[i] = kNothing;
        }
        for (int i = high; i < kChunk; ++i) {
            weights[i] = kNothing;
        }
        Floats most = load<Floats>(weights);
        for (int i = kWidth; i < kChunk; i += kWidth) {
            most = larger(most, load<Floats>(weights + i));
        }
        const float here = largest(most), before = state.most[row];
        const float higher = here > before ? here : before;
        Floats total = {};
        for (int i = 0; i < kChunk; i += kWidth) {
            const Floats weight = exponential(load<Floats>(weights + i) - higher);
            store(weights + i, weight);
            total += weight;
        }
        const float kept = before == higher ? 1.0f : exponential(before - higher);
        state.total[row] = state.total[row] * kept + sum(total);
        state.most[row] = higher;
        if (kept != 1.0f) {
            float* const mixed = state.mixed + row * stride;
            for (int i = 0; i < stride; i += kWidth) {
                store(mixed + i, load<Floats>(mixed + i) * kept);
            }
        }
    }

    // mixed[row][at ...] += weights[row] times the values, for `count` rows and `vectors` vectors of head_dim.
    template <int count, int vectors, bool whole>
    [[gnu::always_inline]] void mix_tile(int row, int at, int seen_from, int seen_to, State& state) {
        float* const mixed = state.mixed + row * stride + at;
        Floats sum[count][vectors];
        PL_UNROLL
        for (int r = 0; r < count; ++r) {
            PL_UNROLL
            for (int v = 0; v < vectors; ++v) {
                sum[r][v] = load<Floats>(mixed + r * stride + v * kWidth);
            }
        }
        for (int i = seen_from; i < seen_to; ++i) {
            const Element* const from = values[i / kGroup] + static_cast<int64_t>(i % kGroup) * dim + at;
            const float* const weights = scores + row * kChunk + i;
            Floats value[vectors];
            PL_UNROLL
            for (int v = 0; v < vectors; ++v) {
                value[v] = whole ? Number::read(from + v * kWidth) : Number::read_first(from, dim - at);
            }
            PL_UNROLL
            for (int r = 0; r < count; ++r) {
                PL_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    sum[r][v] += weights[r * kChunk] * value[v];
                }
            }
        }
        PL_UNROLL
        for (int r = 0; r < count; ++r) {
            PL_UNROLL
            for (int v = 0; v < vectors; ++v) {
                store(mixed + r * stride + v * kWidth, sum[r][v]);
            }
        }
    }

    template <int count>
    void mix_rows(int row, int seen_from, int seen_to, State& state) {
        int at = 0;
        for (; at + 4 * kWidth <= dim; at += 4 * kWidth) {
            mix_tile<count, 4, true>(row, at, seen_from, seen_to, state);
        }
        for (; at + kWidth <= dim; at += kWidth) {
            mix_tile<count, 1, true>(row, at, seen_from, seen_to, state);
        }
        if (at < dim) {
            mix_tile<count, 1, false>(row, at, seen_from, seen_to, state);
        }
    }

    void mix(int row, int seen_from, int seen_to, State& state) {
        switch (rows - row) {
            case 1:
                return mix_rows<1>(row, seen_from, seen_to, state);
            case 2:
                return mix_rows<2>(row, seen_from, seen_to, state);
            case 3:
                return mix_rows<kQueryRows < 3 ? kQueryRows : 3>(row, seen_from, seen_to, state);
            case 4:
                return mix_rows<kQueryRows < 4 ? kQueryRows : 4>(row, seen_from, seen_to, state);
            case 5:
                return mix_rows<kQueryRows < 5 ? kQueryRows : 5>(row, seen_from, seen_to, state);
            default:
                return mix_rows<kQueryRows>(row, seen_from, seen_to, state);
        }
    }

    void write(const State& state) const {
        for (int row = 0; row < rows; ++row) {
            float* const out = query(row, op.out);
            const float inverse = 1.0f / state.total[row];
            for (int i = 0; i < dim; ++i) {
                out[i] = state.mixed[row * stride + i] * inverse;
            }
        }
    }
};

}  // namespace
}  // namespace pilotlight
