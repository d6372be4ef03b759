// The linear for few tokens: it streams the weights at the speed of memory, and feeds the tensor cores on the side.
//
// Y^T = W X^T: 16 rows of W are the mma's rows, 8 tokens its columns, so that few tokens waste little. The sum over k
// may run in any order, so lane (g = lane / 4, t = lane % 4) takes 16 contiguous bytes of its rows, and the same k of
// its token; two mma use them up. No shared memory, no shuffles, and W stays as it is in the snapshot.
//
//   a step: k 0 .. 31         0-7    8-15   16-23   24-31          rows of W:    plain        gated
//   row g and row g + 8       t = 0  t = 1  t = 2   t = 3            g           base + g     base + g (gate)
//   token g of each tile      t = 0  t = 1  t = 2   t = 3            g + 8       base + 8 + g n + base + g (up)
//
//   of its 16 bytes, elements    0, 1            2, 3            4, 5            6, 7
//   are the mma's k              2t, 2t+1        2t+8, 2t+9      2t, 2t+1        2t+8, 2t+9
//                                `------- first mma -------'     `------- second mma ------'
//
// A warp takes units of 64 k (two steps: a whole 128-byte line of each row), the 8 warps of a block take units in turn,
// and grid.z splits the units once more. Each warp keeps kAhead steps of W in flight in registers. At the end the
// warps' sums meet in shared memory and are added from warp 0 up; gated, a row's gate and up are then in one thread.
// Blocks along grid.x make the same rows for the next tokens, side by side, so that W comes from memory once.
//
// The order in which a row's products are added depends on k and grid.z alone, not on the tokens, their number, or
// kTokenTiles: a token's result is bitwise the same in every batch that this form takes.
#pragma once
#include "linear_epilogue.cuh"
#include "mma.cuh"

constexpr int kSkinnyWarps = 8;
constexpr int kUnit = 64;
constexpr int kStep = 32;

template <typename T, int kTokenTiles, int kRowTiles, int kAhead, int kTokensAhead, bool kGated>
inline void linear_skinny(Linear<T> p) {
  static_assert(kAhead % 2 == 0 && kAhead % kTokensAhead == 0);
  constexpr int kTileRows = kGated ? 8 : 16;  // of Y's columns, per row tile
  // Sums of one row tile: a token's 16 rows, then 4 floats so that lanes (g, t) and the readers below hit 32 banks.
  constexpr int kPitch = 20;
  __shared__ __align__(16) float sums[kSkinnyWarps][kTokenTiles * 8][kPitch];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first_token = blockIdx.x * kTokenTiles * 8;
  const int first_column = blockIdx.y * kRowTiles * kTileRows;

  // Where this warp's first unit begins, and this lane's bytes of it; elements from `end` on are not of this block.
  const int units = (p.k + kUnit - 1) / kUnit;
  const int first_unit = units * int(blockIdx.z) / int(gridDim.z);
  const int end_unit = units * (int(blockIdx.z) + 1) / int(gridDim.z);
  const int end = min(p.k, end_unit * kUnit);
  int unit = (first_unit + warp) * kUnit;
  const int from = unit + t * 8;

  // Rows past the end repeat the last one, tokens past the end are zeros; what they give is not stored.
  const T* rows[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int column = first_column + r * kTileRows + g;
    const int upper = kGated ? p.n + min(column, p.n - 1) : min(column + 8, p.n - 1);
    rows[r][0] = p.weight + i64(min(column, p.n - 1)) * p.k + from;
    rows[r][1] = p.weight + i64(upper) * p.k + from;
  }
  const T* tokens = p.x + i64(first_token + g) * p.k + from;
  const i64 next_tile = i64(8) * p.k;

  // From the first step of a unit to step `i` from there.
  const auto ahead = [&](int i) { return i / 2 * (kSkinnyWarps * kUnit) + i % 2 * kStep; };
  Vec w[kAhead][kRowTiles][2];
  Vec x[kTokensAhead][kTokenTiles];
  const auto load_weights = [&](int slot, int step) {
    const bool valid = unit + t * 8 + ahead(step) < end;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      w[slot][r][0] = load_stream(rows[r][0] + ahead(step), valid);
      w[slot][r][1] = load_stream(rows[r][1] + ahead(step), valid);
    }
  };
  const auto load_tokens = [&](int slot, int step) {
    const bool valid = unit + t * 8 + ahead(step) < end;
#pragma unroll
    for (int c = 0; c < kTokenTiles; ++c) {
      x[slot][c] = load_constant(tokens + c * next_tile + ahead(step), valid && first_token + c * 8 + g < p.tokens);
    }
  };

  float d[kRowTiles][kTokenTiles][4] = {};
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_weights(i, i);
#pragma unroll
  for (int i = 0; i < kTokensAhead; ++i) load_tokens(i, i);
#pragma unroll 1
  for (; unit < end; unit += ahead(kAhead)) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const Vec& low = w[i][r][0];
          const Vec& high = w[i][r][1];
          const u32 a[4] = {low.pair[2 * half], high.pair[2 * half], low.pair[2 * half + 1], high.pair[2 * half + 1]};
#pragma unroll
          for (int c = 0; c < kTokenTiles; ++c) {
            const Vec& token = x[i % kTokensAhead][c];
            const u32 b[2] = {token.pair[2 * half], token.pair[2 * half + 1]};
            mma<T>(d[r][c], a, b);
          }
        }
      }
      load_weights(i, i + kAhead);
      load_tokens(i % kTokensAhead, i + kTokensAhead);
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      rows[r][0] += ahead(kAhead);
      rows[r][1] += ahead(kAhead);
    }
    tokens += ahead(kAhead);
  }

  // Where k is split, split z leaves part z, and the bias goes to part 0.
  p.y = static_cast<float*>(p.y) + i64(blockIdx.z) * p.tokens * p.n;
  if (blockIdx.z != 0) p.bias = nullptr;
#pragma unroll 1
  for (int r = 0; r < kRowTiles; ++r) {
    if (r != 0) __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {  // registers have no index, so each row tile has its own stores
      if (tile != r) continue;
#pragma unroll
      for (int c = 0; c < kTokenTiles; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[warp][c * 8 + t * 2 + e % 2][e / 2 * 8 + g] = d[tile][c][e];
      }
    }
    __syncthreads();
    // Four rows a thread: a token's are taken by 4 neighbours (gated, by 2, with up's 8 rows further). Which tokens eight
    // lanes take is chosen for the banks: 4 apart (gated, 2), thus 16 (gated, 8) banks.
    constexpr int kQuads = kTileRows / 4;
    static_assert(kTokenTiles * 8 * kQuads <= kSkinnyWarps * kWarp);
    const int i = threadIdx.x;
    if (i < kTokenTiles * 8 * kQuads) {
      const int eight = i / 8;
      const int token = eight / kQuads * 8 + eight % kQuads + i % 8 / kQuads * kQuads;  // of the block's
      const int row = i % kQuads * 4;
      float sum[4] = {};
      float up[4] = {};
#pragma unroll
      for (int other = 0; other < kSkinnyWarps; ++other) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sum[e] += sums[other][token][row + e];
          if (kGated) up[e] += sums[other][token][row + 8 + e];
        }
      }
      const int column = first_column + r * kTileRows + row;
      if (first_token + token < p.tokens && column < p.n) {
        store_four<T, kGated>(p, first_token + token, column, sum, up);
      }
    }
  }
}
