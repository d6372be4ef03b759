// Prefill attention over paged K/V: flash attention of a chunk's new tokens, in ragged batches, over their sequences'
// pages. The chunk's own K and V have been written to the pages before.
//
// The query heads of a group share a K/V head, so tokens and heads are packed into rows, token by token:
//
//   row        0       1      ..   group - 1    group   ..
//   token      0       0      ..       0          1     ..
//   head       0       1      ..   group - 1      0     ..
//
// A block has kRows rows of one sequence and one K/V head, and reads each tile of kKeys tokens of K and V once for
// all of them. Its four warps take 16 or 32 rows each, from Q K^T over the softmax to P V, without a word to each
// other:
//
//   Q [16 rows x 16]          ldmatrix, from shared memory             a        rows of Q stay there all the time
//   K [16 tokens x 16]        ldmatrix                                 b        S = Q K^T
//   P [16 rows x 16 tokens]   S's d is the layout of a, once rounded   a        out += P V
//   V [16 tokens x 16]        ldmatrix, transposed                     b
//
// Tiles start at multiples of kKeys from position 0, and a tile of which a row sees nothing leaves that row's state
// bitwise as it was. So a row's result does not depend on the rows beside it: neither on how a prompt is cut into
// chunks, nor on the batch, nor on kRows.
//
// The list of blocks is made by the host, which knows the lengths: it is exact, needs no search, and puts the longest
// first, so that the last to run are short.
#include "attention_tile.cuh"

// One block's rows, of all that [tokens, group] makes. `shift`: a token's position less its number.
struct alignas(16) Block {
  int sequence, first, end, shift;  // end: of the chunk's rows, which may be beyond this block's
};

struct Problem {
  void* out;            // [tokens, heads, head_dim]
  const void* q;        // the same
  const void* pages;    // as in decode
  const int* table;     // as in decode
  const int* starts;    // as in decode
  const Block* blocks;  // [gridDim.x]
  int heads, kv_heads;
  i64 page_stride;      // in elements
  int window;           // 0: none
  float score_scale;    // times q . k gives the score, as an exponent of 2 (with a cap: twice its share of the cap)
  float cap;            // scores go to cap * tanh(score / cap), as an exponent of 2; 0: no cap
  float value_scale;
};

// A warp's rows: their running softmax and sums.
template <typename T, typename F>
struct Rows {
  int g, t;
  int first_row;                // of the block's
  u32 across, down;             // what this lane adds to an address of 16 x 16 for ldmatrix: Q and V, and K
  float out[F::kRowTiles][F::kHeadDim / 8][4];
  float maximum[F::kRowTiles][2];  // of q . k, or with a cap of the score; rows g and g + 8
  float sum[F::kRowTiles][2];      // of this lane's tokens
  int position;  // of the warp's first row
  u32 ahead;     // byte 2m + h: how far position of row 16m + 8h + g is ahead of it; registers are scarce

  explicit Rows(int warp) : g(threadIdx.x % kWarp / 4), t(threadIdx.x % 4), first_row(warp * F::kWarpRows) {
    const int matrix = threadIdx.x % kWarp / 8, r = threadIdx.x % 8;
    across = F::place(matrix % 2 * 8 + r, matrix / 2);
    down = F::place(matrix / 2 * 8 + r, matrix % 2);
#pragma unroll
    for (int m = 0; m < F::kRowTiles; ++m) {
      maximum[m][0] = maximum[m][1] = minus_infinity();
      sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
      for (int n = 0; n < F::kHeadDim / 8; ++n) out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.0f;
    }
  }

  // A tile of K and V, from position `first`, at `tile` in shared memory; the warp's rows of Q are at `query`. mask:
  // some row may not see all of the tile.
  void attend(u32 query, u32 tile, int first, u32 window, bool mask, float scale, float cap) {
    float scores[F::kRowTiles][F::kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < F::kHeadDim / 16; ++d) {
      u32 a[F::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < F::kRowTiles; ++m) {
        load_matrix(a[m], F::along(query + across, d * 32) + m * 16 * F::kRowBytes);
      }
#pragma unroll
      for (int n = 0; n < F::kKeys / 16; ++n) {
        u32 b[4];
        load_matrix(b, F::along(tile + down, d * 32) + n * 16 * F::kRowBytes);
        multiply(scores, a, b, 2 * n);
      }
    }
    if (cap > 0.0f) {
#pragma unroll
      for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            scores[m][n][i] = fmaf(-2.0f * cap, reciprocal_fast(1.0f + exp2_fast(scores[m][n][i] * scale)), cap);
      scale = 1.0f;
    }
    if (mask) {
#pragma unroll
      for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int token = first + 8 * n + 2 * t + i % 2;
            const int row = position + int(ahead >> (16 * m + i / 2 * 8) & 0xff);
            if (u32(row - token) >= window) scores[m][n][i] = minus_infinity();
          }
    }
    soften(scores, scale);
#pragma unroll
    for (int k = 0; k < F::kKeys / 16; ++k) {
      u32 a[F::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&pair)[4] = scores[m][2 * k + i / 2];
          a[m][i] = T::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
#pragma unroll
      for (int n = 0; n < F::kHeadDim / 16; ++n) {
        u32 b[4];
        load_matrix_transposed(b, F::along(tile + F::kKeysBytes + across, n * 32) + k * 16 * F::kRowBytes);
        multiply(out, a, b, 2 * n);
      }
    }
  }

  // d[.][n] and d[.][n + 1] += a * b
  template <int kColumns>
  static void multiply(float (&d)[F::kRowTiles][kColumns][4], const u32 (&a)[F::kRowTiles][4], const u32 (&b)[4],
                       int n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 pair[2] = {b[2 * half], b[2 * half + 1]};
#pragma unroll
      for (int m = 0; m < F::kRowTiles; ++m) mma<T>(d[m][n + half], a[m], pair);
    }
  }

  // Scores become 2^(scale * (score - maximum)), and what was summed before is scaled to the new maximum.
  void soften(float (&scores)[F::kRowTiles][F::kKeys / 8][4], float scale) {
    float shrink[F::kRowTiles][2];
    bool shrinks = false;
#pragma unroll
    for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float high = maximum[m][h];
#pragma unroll
        for (int n = 0; n < F::kKeys / 8; ++n) {
          high = fmaxf(high, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        }
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
        high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
        // Both products rounded alike: where the maximum stays, the difference is 0 and the factor 1.
        const float base = __fmul_rn(reference(high), scale);
        shrink[m][h] = exp2_fast(__fmul_rn(maximum[m][h], scale) - base);
        shrinks |= shrink[m][h] != 1.0f;
        maximum[m][h] = high;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < F::kKeys / 8; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale, -base));
            added += scores[m][n][i];
          }
        sum[m][h] = fmaf(sum[m][h], shrink[m][h], added);
      }
    if (!__any_sync(~0u, shrinks)) return;  // most tiles: times 1 changes nothing
#pragma unroll
    for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < F::kHeadDim / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] *= shrink[m][i / 2];
  }

  // The results, rounded, where the warp's rows of Q were. No other warp reads or writes there.
  void leave(u8* memory, float value_scale) {
    __syncwarp();
#pragma unroll
    for (int m = 0; m < F::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += __shfl_xor_sync(~0u, sum[m][h], 1);
        sum[m][h] += __shfl_xor_sync(~0u, sum[m][h], 2);
        const float scale = value_scale * reciprocal_fast(sum[m][h]);
#pragma unroll
        for (int n = 0; n < F::kHeadDim / 8; ++n) {
          const u32 pair = T::pack(out[m][n][2 * h] * scale, out[m][n][2 * h + 1] * scale);
          *reinterpret_cast<u32*>(memory + F::place(first_row + m * 16 + h * 8 + g, n) + t * 4) = pair;
        }
      }
    __syncwarp();
  }
};

template <typename T, template <typename> class PagesOf, int kHeadDim, int kWarps, int kRowTiles, int kKeys>
inline void prefill(const Problem& problem) {
  using Pages = PagesOf<T>;
  using F = Form<Pages, kHeadDim, kWarps, kRowTiles, kKeys>;
  extern __shared__ __align__(128) u8 memory[];
  const u32 shared = shared_address(memory);
  const Block block = problem.blocks[blockIdx.x];
  const int group = problem.heads / problem.kv_heads;
  const int rows = min(block.end - block.first, F::kRows);
  const u32 window = problem.window > 0 ? problem.window : 0x7fffffff;
  const auto position = [&](int row) { return (block.first + min(row, rows - 1)) / group + block.shift; };
  const auto seen_from = [&](int position) { return u32(position) >= window ? position - int(window) + 1 : 0; };

  // The same in all lanes, and the compiler may know.
  Rows<T, F> warp(__shfl_sync(~0u, int(threadIdx.x) / kWarp, 0));
  const int last_row = warp.first_row + F::kWarpRows - 1;

  // Where row r of the block lies in q and out.
  const auto element = [&](int row) {
    const int token = (block.first + row) / group, head = (block.first + row) % group;
    return (i64(token) * problem.heads + i64(blockIdx.y) * group + head) * kHeadDim;
  };
  constexpr int kWarpChunks = F::kWarpRows * F::kChunks;
#pragma unroll 2
  for (int i = threadIdx.x % kWarp; i < kWarpChunks; i += kWarp) {  // a warp copies its own rows
    const int row = warp.first_row + i / F::kChunks, chunk = i % F::kChunks;
    const T* from = static_cast<const T*>(problem.q) + element(row) + chunk * 8;
    copy_async(shared + F::place(row, chunk), from, row < rows);
  }

  constexpr int kTileBytes = kPageTokens * kHeadDim * Pages::kBytes;
  Loader<T, Pages, F> loader;
  loader.kv = static_cast<const u8*>(problem.pages) + i64(blockIdx.y) * kTileBytes + threadIdx.x * 16;
  loader.page_bytes = problem.page_stride * Pages::kBytes;
  loader.value_bytes = i64(problem.kv_heads) * kTileBytes;
  loader.table = problem.table + problem.starts[block.sequence];
  loader.memory = memory;
  loader.shared = shared;
  loader.from = seen_from(position(0));
  loader.to = position(rows - 1) + 1;

  warp.position = position(warp.first_row);
  warp.ahead = 0;
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    warp.ahead |= u32(position(warp.first_row + i * 8 + warp.g) - warp.position) << (8 * i);
  }
  // What all of the warp's rows see, and what any of them does.
  const int all_from = seen_from(position(last_row)), any_from = seen_from(warp.position);
  const int all_to = warp.position + 1, any_to = warp.first_row < rows ? position(last_row) + 1 : 0;

  int first = loader.from - loader.from % kKeys;
  loader.look_up(first);
  loader.copy(first, 0);
  loader.look_up(first + kKeys);
  const float scale = problem.score_scale * Pages::kUnit;
  for (int stage = 0; first < loader.to; first += kKeys, stage ^= 1) {
    wait_copies<0>();
    __syncthreads();  // everyone's are here, and everyone is done with the last tile
    if (first + kKeys < loader.to) {
      loader.copy(first + kKeys, stage ^ 1);
      loader.look_up(first + 2 * kKeys);
    }
    u32 tile = shared + F::kTile;
    if (F::kRaw) {
      loader.decode(stage);
      __syncthreads();
    } else {
      tile += stage * F::kStageBytes;
    }
    if (first >= any_to || first + kKeys <= any_from) continue;
    const bool mask = first < all_from || first + kKeys > all_to;
    warp.attend(shared + warp.first_row * F::kRowBytes, tile, first, window, mask, scale, problem.cap);
  }

  warp.leave(memory, problem.value_scale * Pages::kUnit);
#pragma unroll 4
  for (int i = threadIdx.x % kWarp; i < kWarpChunks; i += kWarp) {
    const int row = warp.first_row + i / F::kChunks, chunk = i % F::kChunks;
    if (row >= rows) break;
    store(static_cast<T*>(problem.out) + element(row) + chunk * 8,
          *reinterpret_cast<Vec*>(memory + F::place(row, chunk)));
  }
}

#define PREFILL(name, T, pages_of, head_dim, warps, row_tiles, keys, blocks_an_sm)                                  \
  extern "C" __global__ __launch_bounds__(warps * kWarp, blocks_an_sm) void name(                                   \
      void* out, const void* q, const void* pages, const int* table, const int* table_starts, const Block* blocks,  \
      int heads, int kv_heads, i64 page_stride, int window, float score_scale, float cap, float value_scale) {      \
    prefill<T, pages_of, head_dim, warps, row_tiles, keys>({out, q, pages, table, table_starts, blocks, heads,      \
                                                            kv_heads, page_stride, window, score_scale, cap,        \
                                                            value_scale});                                          \
  }

// name: attention_prefill_d[head_dim]_r[rows]; then warps, tiles of 16 rows of each, tokens of a tile, blocks an SM.
#define PREFILL_FORMS(name, head_dim, ...)                                   \
  PREFILL(name##_bf16, Bf16, HalfPages, head_dim, __VA_ARGS__)               \
  PREFILL(name##_f16, F16, HalfPages, head_dim, __VA_ARGS__)                 \
  PREFILL(name##_fp8_bf16, Bf16, Fp8Pages, head_dim, __VA_ARGS__)            \
  PREFILL(name##_fp8_f16, F16, Fp8Pages, head_dim, __VA_ARGS__)

PREFILL_FORMS(attention_prefill_d64_r64, 64, 4, 1, 32, 4)
PREFILL_FORMS(attention_prefill_d64_r128, 64, 4, 2, 32, 3)
PREFILL_FORMS(attention_prefill_d96_r64, 96, 4, 1, 32, 3)
PREFILL_FORMS(attention_prefill_d96_r128, 96, 4, 2, 32, 2)
PREFILL_FORMS(attention_prefill_d128_r64, 128, 4, 1, 32, 3)
PREFILL_FORMS(attention_prefill_d128_r128, 128, 4, 2, 32, 2)
PREFILL_FORMS(attention_prefill_d256_r64, 256, 4, 1, 16, 2)
PREFILL_FORMS(attention_prefill_d256_r128, 256, 8, 1, 16, 1)
