// Attention of new tokens over the pages of their sequences, decode and prefill alike, the whole batch in one op.
// Apart from the work on a block (attention_block.hpp): here a batch is cut into blocks and a long context into splits,
// which are pieces of work of their own where a sequence has but one new token.
#pragma once

#include "attention_block.hpp"
#include "team.hpp"

namespace pilotlight {
namespace {

// How a sequence is cut: into blocks of rows, or into splits of its context where one new token makes one block.
struct SequenceCut {
    int blocks, splits;
    int first_split;  // of those in the window

    SequenceCut(const PlAttention& op, int sequence) {
        const int tokens = op.starts[sequence + 1] - op.starts[sequence], length = op.lengths[sequence];
        const int rows = tokens * (op.cache.heads / op.cache.kv_heads);
        blocks = (rows + kQueries - 1) / kQueries;
        first_split = op.window > 0 && length > op.window ? (length - op.window) / kSplit : 0;
        splits = tokens == 1 && blocks == 1 ? (length + kSplit - 1) / kSplit - first_split : 1;
    }

    int pieces() const { return blocks * splits; }
    int partials() const { return splits > 1 ? splits : 0; }
};

// How many pieces and partial results the sequences before this one have: [S + 1], at the head of the scratch.
struct Offsets {
    int32_t pieces, partials;
};

inline int64_t offsets_bytes(int sequences) {
    return (static_cast<int64_t>(sequences + 1) * static_cast<int64_t>(sizeof(Offsets)) + 63) / 64 * 64;
}

// The sequence that a piece belongs to.
inline int sequence_of(const Offsets* offsets, int sequences, int piece) {
    int low = 0, high = sequences;  // offsets[low].pieces <= piece < offsets[high].pieces
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (offsets[middle].pieces <= piece ? low : high) = middle;
    }
    return low;
}

// A block of rows over its whole context, split after split.
template <class Number>
inline void attend(const PlAttention& op, int sequence, int head, int first) {
    Block<Number> block(op, sequence, head, first);
    alignas(64) State state;
    const int end = block.end(block.rows - 1), first_split = block.begin(0) / kSplit;
    if (end <= (first_split + 1) * kSplit) {
        block.gather(0, end, state);
        block.write(state);
        return;
    }
    alignas(64) State merged;
    merged.clear(block.rows, block.stride);
    for (int split = first_split; split * kSplit < end; ++split) {
        block.gather(split * kSplit, (split + 1) * kSplit, state);
        for (int row = 0; row < block.rows; ++row) {
            merge_row(state.most[row], state.total[row], state.mixed + row * block.stride, merged, row, block.stride);
        }
    }
    block.write(merged);
}

template <class Number>
inline void attention_of(Team& team, const PlAttention& op) {
    const int sequences = *op.sequences, kv_heads = op.cache.kv_heads;
    const int group = op.cache.heads / kv_heads, stride = padded(op.cache.head_dim);
    Offsets* const offsets = static_cast<Offsets*>(op.scratch);
    offsets[0] = {0, 0};
    for (int s = 0; s < sequences; ++s) {
        const SequenceCut cut(op, s);
        offsets[s + 1] = {offsets[s].pieces + cut.pieces(), offsets[s].partials + cut.partials()};
    }
    // A partial result of a K/V head's rows: each most, total, mixed.
    float* const partials = reinterpret_cast<float*>(static_cast<char*>(op.scratch) + offsets_bytes(sequences));
    const auto partial = [&](int sequence, int split, int head) {
        const int64_t index = static_cast<int64_t>(offsets[sequence].partials + split) * kv_heads + head;
        return partials + index * group * (2 + stride);
    };
    team.each(offsets[sequences].pieces * kv_heads, [&](int index, int) {
        const int head = index % kv_heads, sequence = sequence_of(offsets, sequences, index / kv_heads);
        const int piece = index / kv_heads - offsets[sequence].pieces;
        const SequenceCut cut(op, sequence);
        if (cut.splits == 1) {
            // The last blocks see most and so come first.
            return attend<Number>(op, sequence, head, (cut.blocks - 1 - piece) * kQueries);
        }
        Block<Number> block(op, sequence, head, 0);
        alignas(64) State state;
        const int from = (cut.first_split + piece) * kSplit;
        block.gather(from, from + kSplit, state);
        float* out = partial(sequence, piece, head);
        for (int row = 0; row < group; ++row, out += 2 + stride) {
            out[0] = state.most[row];
            out[1] = state.total[row];
            memcpy(out + 2, state.mixed + row * stride, static_cast<size_t>(stride) * sizeof(float));
        }
    });
    team.each(offsets[sequences].partials == 0 ? 0 : sequences, [&](int sequence, int) {
        const SequenceCut cut(op, sequence);
        for (int head = 0; cut.splits > 1 && head < kv_heads; ++head) {
            alignas(64) State merged;
            merged.clear(group, stride);
            for (int split = 0; split < cut.splits; ++split) {
                const float* from = partial(sequence, split, head);
                for (int row = 0; row < group; ++row, from += 2 + stride) {
                    merge_row(from[0], from[1], from + 2, merged, row, stride);
                }
            }
            Block<Number>(op, sequence, head, 0).write(merged);
        }
    });
}

void attention(Team& team, const PlAttention& op) {
    switch (op.cache.type) {
        case PL_F32:
            return attention_of<Float>(team, op);
        case PL_F16:
            return attention_of<Half>(team, op);
        default:
            return attention_of<Bfloat>(team, op);
    }
}

}  // namespace
}  // namespace pilotlight
