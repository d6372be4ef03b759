// The gated layer: two linear layers, gate and up, whose outputs meet as activation(gate) * up before they are stored.
// Apart from linear.hpp because of what lies between the tiles and the output.
//
// A tile's rows get kBand outputs of the gate and as many of up, in a buffer that stays in the first-level cache; then
// these are joined a vector at a time.
#pragma once

#include "activation.hpp"
#include "linear.hpp"

namespace pilotlight {
namespace {

// Outputs first to first + kBand of one half of the weights, for the rows of a tile.
template <class Weights>
inline void multiply_band(const PlMatrix& weight, int first, int end, const float* bias, const char* packed,
                          int64_t row_bytes, int rows, bool first_use, float (*out)[kBand]) {
    for (int n = 0; n < kBand && first + n < end; n += 4) {
        const Quad<Weights> quad(weight, first + n, end);
        const Four b = bias ? load_first<Four>(bias + first + n, end - first - n < 4 ? end - first - n : 4) : Four{};
        Four y[kTileRows];
        multiply<Weights>(packed, row_bytes, rows, quad, weight.columns, first_use, y);
        for (int i = 0; i < rows; ++i) {
            store(out[i] + n, y[i] + b);
        }
    }
}

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
    const Cut cut(rows, outputs, 2 * columns * static_cast<int64_t>(sizeof(typename Weights::Element)), row_bytes);
    team.each(cut.bands * cut.blocks, [&](int piece, int) {
        cut.each_near<kBand>(piece, [&](int first_row, int near, int n, int count) {
            for (int m = 0; m < near; m += kTileRows) {
                const int row = first_row + m, tile = near - m < kTileRows ? near - m : kTileRows;
                const char* const x = packed + row * row_bytes;
                alignas(64) float gate[kTileRows][kBand] = {}, up[kTileRows][kBand] = {};
                multiply_band<Weights>(weight, n, outputs, op.bias, x, row_bytes, tile, m == 0, gate);
                multiply_band<Weights>(weight, outputs + n, 2 * outputs, op.bias, x, row_bytes, tile, m == 0, up);
                for (int i = 0; i < tile; ++i) {
                    for (int j = 0; j < kBand; j += kWidth) {
                        const Floats activated_gate = activated(load<Floats>(gate[i] + j), op.activation);
                        store(gate[i] + j, activated_gate * load<Floats>(up[i] + j));
                    }
                    memcpy(op.out + static_cast<int64_t>(row + i) * outputs + n, gate[i],
                           static_cast<size_t>(count) * sizeof(float));
                }
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
