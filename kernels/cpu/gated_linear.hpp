// The gated layer: two linear layers, gate and up, whose outputs meet as activation(gate) * up before they are stored.
// Apart from linear.hpp because of what lies between the tiles and the output.
//
// For the rows that are near, a few outputs of the gate and as many of up are made in buffers that stay in the
// first-level cache, and then joined a vector at a time.
#pragma once

#include "activation.hpp"
#include "linear.hpp"

namespace pilotlight {
namespace {

template <class Weights>
inline void gated_linear_of(Team& team, const PlGatedLinear& op) {
    const PlMatrix& weight = op.weight;
    const int rows = *op.rows, columns = weight.columns, outputs = weight.rows / 2;
    if (rows == 0) {
        return;
    }
    char* const packed = static_cast<char*>(op.packed);
    const int64_t row_bytes = Weights::row_bytes(columns);
    pack_rows<Weights>(team, op.x, rows, columns, packed);
    const Cut cut(team.threads(), rows, outputs, 2 * columns * static_cast<int64_t>(sizeof(typename Weights::Element)));
    team.each(cut.bands * cut.blocks, [&](int piece, int) {
        cut.each_near(piece, [&](int row, int near, int n, int count) {
            constexpr int width = 4 * kQuads;
            alignas(64) float gate[kNearRows][width], up[kNearRows][width];
            const char* const x = packed + row * row_bytes;
            const float* const bias = op.bias ? op.bias + n : nullptr;
            multiply_near<Weights>(x, row_bytes, near, weight, {gate[0], width, bias, n, count, outputs});
            multiply_near<Weights>(x, row_bytes, near, weight,
                                   {up[0], width, bias ? bias + outputs : nullptr, outputs + n, count, 2 * outputs});
            for (int i = 0; i < near; ++i) {
                int j = 0;
                float* const out = op.out + static_cast<int64_t>(row + i) * outputs + n;
                for (; j + kWidth <= count; j += kWidth) {
                    store(out + j, activated(load<Floats>(gate[i] + j), op.activation) * load<Floats>(up[i] + j));
                }
                const Floats last = activated(load_first<Floats>(gate[i] + j, count - j), op.activation);
                store_first(out + j, last * load_first<Floats>(up[i] + j, count - j), count - j);
            }
        });
    });
}

void gated_linear(Team& team, const PlGatedLinear& op) {
    switch (op.weight.type) {
        case PL_F32:
            return gated_linear_of<FloatWeights>(team, op);
        case PL_F16:
            return gated_linear_of<HalfWeights>(team, op);
        case PL_BF16:
            return gated_linear_of<BfloatWeights>(team, op);
        default:
            return gated_linear_of<IntWeights>(team, op);
    }
}

}  // namespace
}  // namespace pilotlight
