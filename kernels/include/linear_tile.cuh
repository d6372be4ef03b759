// The linear for many tokens: tiles of Y, whose operands pass through shared memory in stages, for the tensor cores.
//
// A block of four warps makes a tile of kTokens tokens by kRows rows of W; a warp, kWarpTokens by 64 of it:
//
//   128 x 128: | warp 0 | warp 1 |  64 tokens each        64 x 64: | warp 0 |  16 tokens each
//              | warp 2 | warp 3 |                                 | warp 1 |
//                64 rows  64 rows                                  | warp 2 |
//                                                                  | warp 3 |  64 rows
//
// A stage holds 32 k of the tile's tokens and rows: 64 bytes each, four chunks of 16. Chunk c of row r lies at chunk
// c ^ (r / 2 % 4), so that the eight rows that an ldmatrix takes at once lie in different banks:
//
//   bytes    0      16     32     48     64     80     96     112
//   rows     0: 0   1      2      3      1: 0   1      2      3
//            2: 1   0      3      2      3: 1   0      3      2
//            4: 2   3      0      1      5: 2   3      0      1
//            6: 3   2      1      0      7: 3   2      1      0
//
// Gated, the 64 rows of a warp are 32 of gate and the same 32 of up. At the end a warp passes its sums, 16 tokens at a
// time, through the shared memory of the stages, so that what it stores of a token is contiguous: 128 bytes and more.
//
// Each output's products are added in the order of k, 16 at a time, in both tile sizes: a token's result is bitwise the
// same in every batch of more than 64.
#pragma once
#include "linear_epilogue.cuh"
#include "mma.cuh"

constexpr int kTileK = 32;
constexpr int kTileRowBytes = 64;
constexpr int kRasterTokens = 8;  // tiles of tokens that are made together, so that what they share stays in L2

template <typename T, int kTokens, int kRows, int kStages, bool kGated>
inline void linear_tile(const Linear<T> p) {
  constexpr int kWarpRows = 64;
  constexpr int kWarpTokens = kTokens * kRows / kWarpRows / 4;
  constexpr int kWarpsAcross = kRows / kWarpRows;
  constexpr int kColumns = kGated ? kRows / 2 : kRows;  // of Y
  constexpr int kStageBytes = (kTokens + kRows) * kTileRowBytes;
  extern __shared__ __align__(128) u8 stages[];

  // Tiles of Y in bands of kRasterTokens tiles of tokens: down the band first, then across.
  const int down = (p.tokens + kTokens - 1) / kTokens;
  const int across = (p.n + kColumns - 1) / kColumns;
  const int band = blockIdx.x / (kRasterTokens * across);
  const int in_band = blockIdx.x - band * (kRasterTokens * across);
  const int band_height = min(kRasterTokens, down - band * kRasterTokens);
  const int first_token = (band * kRasterTokens + in_band % band_height) * kTokens;
  const int first_column = in_band / band_height * kColumns;

  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const u32 shared = shared_address(stages);

  // Copying: a thread takes chunk threadIdx % 4 of every 32nd row.
  const int copy_row = threadIdx.x / 4;
  const int copy_chunk = threadIdx.x % 4;
  const T* from_x = p.x + i64(first_token + copy_row) * p.k + copy_chunk * 8;
  const T* from_w = p.weight + i64(first_column + copy_row) * p.k + copy_chunk * 8;
  const i64 next_rows = i64(32) * p.k;
  const i64 to_up = i64(p.n) * p.k;
  const u32 to_x = shared + copy_row * kTileRowBytes + (copy_chunk ^ (copy_row / 2 % 4)) * 16;
  const u32 to_w = to_x + kTokens * kTileRowBytes;
  const auto load_stage = [&](int stage, int tile) {
    const bool in_k = tile * kTileK + copy_chunk * 8 < p.k;  // k is a multiple of 8
#pragma unroll
    for (int i = 0; i < kTokens / 32; ++i) {
      const bool valid = in_k && first_token + copy_row + i * 32 < p.tokens;
      copy_async(to_x + stage * kStageBytes + i * 32 * kTileRowBytes, from_x + i * next_rows + tile * kTileK, valid);
    }
#pragma unroll
    for (int i = 0; i < kRows / 32; ++i) {
      const int rows = kGated ? i / 2 : i;
      const bool valid = in_k && first_column + copy_row + rows * 32 < p.n;
      const T* from = from_w + rows * next_rows + tile * kTileK + (kGated && i % 2 ? to_up : 0);
      copy_async(to_w + stage * kStageBytes + i * 32 * kTileRowBytes, from, valid);
    }
  };

  // Reading: the row whose address this lane gives to ldmatrix, of its warp's first tile.
  const int matrix = lane / 8;
  const int r = lane % 8;
  const int warp_token = warp / kWarpsAcross * kWarpTokens;
  const int warp_row = warp % kWarpsAcross * kWarpRows;
  const u32 read_x = shared + (warp_token + matrix % 2 * 8 + r) * kTileRowBytes + (matrix / 2 ^ (r / 2)) * 16;
  const u32 read_w =
      shared + (kTokens + warp_row + matrix / 2 * 8 + r) * kTileRowBytes + (matrix % 2 ^ (r / 2)) * 16;

  float d[kWarpTokens / 16][8][4] = {};
  const int tiles = (p.k + kTileK - 1) / kTileK;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (i < tiles) load_stage(i, i);
    commit_copies();
  }
  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    wait_copies<kStages - 2>();  // this tile's are the oldest of at most kStages - 1 groups
    __syncthreads();             // everyone's are here, and everyone has read the stage that is filled next
    const int ahead = tile + kStages - 1;
    if (ahead < tiles) load_stage(stage == 0 ? kStages - 1 : stage - 1, ahead);
    commit_copies();

    const u32 offset = stage * kStageBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 k each: chunks 0, 1, then 2, 3
      u32 a[kWarpTokens / 16][4];
      u32 b[4][4];  // two n-tiles each
#pragma unroll
      for (int m = 0; m < kWarpTokens / 16; ++m) {
        load_matrix(a[m], (read_x ^ half * 32) + offset + m * 16 * kTileRowBytes);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        load_matrix(b[n], (read_w ^ half * 32) + offset + n * 16 * kTileRowBytes);
      }
#pragma unroll
      for (int m = 0; m < kWarpTokens / 16; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const u32 pair[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
          mma<T>(d[m][n], a[m], pair);
        }
      }
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  __syncthreads();  // no copy is on its way (the last rounds' groups are empty), and the stages have been read

  // Of the 64 columns of a token, 4 to a thread; 8 floats more a token, and neither side meets a bank twice.
  constexpr int kPitch = kWarpRows + 8;
  constexpr int kQuads = kGated ? 8 : 16;
  float(*const sums)[kPitch] = reinterpret_cast<float(*)[kPitch]>(stages) + warp * 16;
  static_assert(4 * 16 * kPitch * sizeof(float) <= kStages * kStageBytes);
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll 1
  for (int m = 0; m < kWarpTokens / 16; ++m) {
#pragma unroll
    for (int i = 0; i < kWarpTokens / 16; ++i) {  // registers have no index, so each m has its own stores
      if (i != m) continue;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          float2* const to = reinterpret_cast<float2*>(&sums[upper * 8 + g][n * 8 + t * 2]);
          *to = float2{d[i][n][upper * 2], d[i][n][upper * 2 + 1]};
        }
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * kQuads; i += kWarp) {
      const int row = i / kQuads;
      const int at = i % kQuads * 4;
      const int token = first_token + warp_token + m * 16 + row;
      const int column = first_column + (kGated ? warp_row / 2 : warp_row) + at;
      float sum[4], up[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum[e] = sums[row][at + e];
        up[e] = kGated ? sums[row][at + 32 + e] : 0.0f;
      }
      if (token < p.tokens && column < p.n) store_four<T, kGated>(p, token, column, sum, up);
    }
    __syncwarp();
  }
}
