// Decode attention over paged K/V: one query token a sequence, in two kernels. `decode` attends to one split of a
// sequence's context for the query heads that share a K/V head; `combine` joins the splits of a sequence. What a warp
// does with its pages is in attention_warp.cuh.
//
//   work list   | s0 split 0 | s0 split 1 | s1 split 0 | s3 split 0 | ...   each of all K/V heads and head tiles
//   blocks      |  0, 1 ...  |            |    ... grid - 1, 0, 1 ...
//   a split     pages 0 1 2 3 4 5 6 7 ... of its 256 tokens go to warps 0 1 2 3 0 1 2 3 ...
//   its result  one split: out; several: [sequence, head, split] of the workspace, from where `combine` takes them
//
// How long the list is depends on the lengths in memory. The grid does not, so that a graph can hold it: block b
// takes items b, b + grid, ... A split's result does not depend on which block has it, its warps' results are added
// in the order of the warps, and those of the splits in a fixed order: a row is the same in any batch, bit for bit.
//
// Pages: [2 (K, V)][kv_heads][16][head_dim] of this layer at pages + page * page_stride elements. Of K and V the
// tokens that the query sees are read and not a byte beyond: no page past the length or behind the window, nor its
// number in the table. A sequence of length 0 reads nothing, and its row of the output is left as it is.
#include "attention_warp.cuh"

struct Problem {
  const void* q;      // [sequences, heads, head_dim]
  void* out;          // the same
  float* partial;     // [sequences, heads, max_splits, head_dim], of sequences of more than one split
  float2* stats;      // [sequences, heads, max_splits]: maximum and sum, in powers of two
  const void* pages;
  const int* table;   // page numbers of all sequences, one behind another
  const int* starts;  // [sequences]: where in `table` a sequence's begin
  const int* lengths; // [sequences]
  int sequences, heads, kv_heads;
  i64 page_stride;    // in elements
  int max_splits, window;
  Softmax softmax;
  float value_scale;
};

// Number of splits of sequences 0 .. s in ends[s], for every s. All threads of the block take part, each for a run of
// neighbouring sequences, so that a large batch waits for memory no longer than a small one.
inline void count_splits(int* ends, const Problem& problem) {
  __shared__ int totals[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int run = divide_up(problem.sequences, kThreads);
  const i64 first = i64(threadIdx.x) * run;
  const int end = min(first + run, i64(problem.sequences));
  int own = 0;
#pragma unroll 1
  for (i64 sequence = first; sequence < end; ++sequence) {
    own += Splits(problem.lengths[sequence], problem.window).count;
    ends[sequence] = own;
  }
  int before = own;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const int more = __shfl_up_sync(~0u, before, lanes);
    if (lane >= lanes) before += more;
  }
  if (lane == kWarp - 1) totals[warp] = before;
  __syncthreads();
  before -= own;
#pragma unroll
  for (int other = 0; other < kWarps - 1; ++other) before += other < warp ? totals[other] : 0;
#pragma unroll 1
  for (i64 sequence = first; sequence < end; ++sequence) ends[sequence] += before;
  __syncthreads();
}

// A piece of work. It lies in shared memory, since the loop over K and V needs every register.
struct Item {
  i64 row;           // its first in [sequences, heads]
  const int* table;  // of its sequence
  i64 from, to;      // positions
  int number;        // in the list
  int rows;          // query heads; 0 beyond the end of the list
  int kv_head;
  int split;
  int whole;         // it is the only split of its sequence

  // The item of this->number. ends: of count_splits. Query heads of a group go most_rows by most_rows.
  void find(const Problem& problem, const int* ends, int most_rows) {
    const int group = problem.heads / problem.kv_heads, head_tiles = divide_up(group, most_rows);
    const int each = problem.kv_heads * head_tiles;  // items of a split
    const int list_split = number / each;
    rows = 0;
    if (list_split >= ends[problem.sequences - 1]) return;
    int sequence = 0, last = problem.sequences - 1;  // the first one whose end lies beyond
    while (sequence < last) {
      const int middle = (sequence + last) / 2;
      if (ends[middle] > list_split) last = middle;
      else sequence = middle + 1;
    }
    split = list_split - (sequence > 0 ? ends[sequence - 1] : 0);
    kv_head = number % each / head_tiles;
    const int first = number % head_tiles * most_rows;
    rows = min(group - first, most_rows);
    row = i64(sequence) * problem.heads + i64(kv_head) * group + first;
    table = problem.table + problem.starts[sequence];
    const Splits splits(problem.lengths[sequence], problem.window);
    from = splits.from(split);
    to = splits.to(split);
    whole = splits.count == 1;
  }
};

// Joins what the warps left of an item. value_scale: what their sums are multiplied by.
template <typename T, typename F>
inline void join(const Problem& problem, const Item& item, const float* sums, const float2* stats,
                 float value_scale) {
  constexpr int kPairs = F::kHeadDim / 2;
  const int rows = item.rows, half = (rows + 1) / 2;
  for (int i = threadIdx.x; i < rows * kPairs; i += kThreads) {
    const int head = i / kPairs, pair = i % kPairs;
    float2 left[kWarps];
    float maximum = minus_infinity();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      left[warp] = stats[warp * rows + head];
      maximum = fmaxf(maximum, left[warp].x);
    }
    float2 total = {0.0f, 0.0f};
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float weight = exp2_fast(left[warp].x - reference(maximum));
      const float* from = sums + (warp * 2 * half + head % 2 * half + head / 2) * F::kRowFloats + F::column(2 * pair);
      const float2 part = *reinterpret_cast<const float2*>(from);
      sum += weight * left[warp].y;
      total.x += weight * part.x;
      total.y += weight * part.y;
    }
    const float scale = item.whole ? value_scale * reciprocal_fast(sum) : value_scale;
    total.x *= scale;
    total.y *= scale;
    const i64 row = item.row + head;
    if (item.whole) {
      static_cast<u32*>(problem.out)[row * kPairs + pair] = T::pack(total.x, total.y);
    } else {
      const i64 place = row * problem.max_splits + item.split;
      reinterpret_cast<float2*>(problem.partial)[place * kPairs + pair] = total;
      if (pair == 0) problem.stats[place] = float2{maximum, sum};
    }
  }
}

template <typename T, template <typename> class PagesOf, int kHeadDim, int kHeadTiles>
inline void decode(const Problem& problem) {
  using Pages = PagesOf<T>;
  using F = Form<Pages, kHeadDim, kHeadTiles>;
  constexpr i64 kTileBytes = kPageTokens * kHeadDim * Pages::kBytes;
  extern __shared__ __align__(16) int ends[];
  __shared__ float2 stats[kWarps * F::kRows];
  __shared__ Item item;
  float* sums = reinterpret_cast<float*>(ends + (problem.sequences + 1) / 2 * 2);
  count_splits(ends, problem);

  if (threadIdx.x == 0) item.number = blockIdx.x;
  while (true) {
    if (threadIdx.x == 0) item.find(problem, ends, F::kRows);
    __syncthreads();
    if (item.rows == 0) break;
    Warp<T, Pages, F> warp(static_cast<const T*>(problem.q) + item.row * kHeadDim, item.rows);
    const Cache cache = {static_cast<const u8*>(problem.pages) + item.kv_head * kTileBytes,
                         problem.page_stride * Pages::kBytes, problem.kv_heads * kTileBytes};
    warp.attend(cache, item.table, item.from, item.to, {problem.softmax.scale * Pages::kUnit, problem.softmax.cap});
    warp.leave(sums, stats, item.rows);
    __syncthreads();
    join<T, F>(problem, item, sums, stats, problem.value_scale * Pages::kUnit);
    __syncthreads();
    if (threadIdx.x == 0) item.number += gridDim.x;
  }
}

// One block a row of [sequences, heads]. Threads side by side have two elements each; groups of them take splits in
// turn, and their results are added in the order of the groups.
template <typename T>
inline void combine(void* out, const float* partial, const float2* stats, const int* lengths, int heads, int head_dim,
                    int max_splits, int window) {
  constexpr int kTogether = 8;  // splits that a thread has on their way at once
  __shared__ float weights[kMaxSplits];
  __shared__ float2 totals[kThreads];
  const int row = blockIdx.x;
  const Splits splits(lengths[row / heads], window);
  if (splits.count <= 1) return;
  const i64 place = i64(row) * max_splits;

  if (threadIdx.x < kWarp) {
    float2 mine[2];
    float maximum = minus_infinity();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int split = threadIdx.x + i * kWarp;
      mine[i] = split < splits.count ? stats[place + split] : float2{minus_infinity(), 0.0f};
      maximum = fmaxf(maximum, mine[i].x);
    }
#pragma unroll
    for (int lanes = 1; lanes < kWarp; lanes *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mine[i].x = exp2_fast(mine[i].x - reference(maximum));
      sum += mine[i].x * mine[i].y;
    }
#pragma unroll
    for (int lanes = 1; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
#pragma unroll
    for (int i = 0; i < 2; ++i) weights[threadIdx.x + i * kWarp] = mine[i].x * reciprocal_fast(sum);
  }
  __syncthreads();

  const int pairs = head_dim / 2, groups = kThreads / pairs;
  const int group = threadIdx.x / pairs, pair = threadIdx.x % pairs;
  float2 total = {0.0f, 0.0f};
  if (group < groups) {
    const float2* from = reinterpret_cast<const float2*>(partial) + place * pairs + pair;
#pragma unroll 1
    for (int first = group; first < splits.count; first += kTogether * groups) {
      float2 parts[kTogether];
      float by[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int split = first + i * groups;
        const bool exists = split < splits.count;
        parts[i] = exists ? from[i64(split) * pairs] : float2{0.0f, 0.0f};
        by[i] = exists ? weights[split] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        total.x += by[i] * parts[i].x;
        total.y += by[i] * parts[i].y;
      }
    }
  }
  totals[threadIdx.x] = total;
  __syncthreads();
  if (group == 0) {
    for (int other = 1; other < groups; ++other) {
      total.x += totals[other * pairs + pair].x;
      total.y += totals[other * pairs + pair].y;
    }
    static_cast<u32*>(out)[i64(row) * pairs + pair] = T::pack(total.x, total.y);
  }
}

#define DECODE(name, T, pages_of, head_dim, head_tiles, blocks)                                                      \
  extern "C" __global__ __launch_bounds__(kThreads, blocks) void name(                                               \
      void* out, float* partial, float2* stats, const void* q, const void* pages, const int* table,                  \
      const int* table_starts, const int* lengths, int sequences, int heads, int kv_heads, i64 page_stride,          \
      int max_splits, int window, float score_scale, float cap, float value_scale) {                                 \
    decode<T, pages_of, head_dim, head_tiles>({q, out, partial, stats, pages, table, table_starts, lengths,          \
                                               sequences, heads, kv_heads, page_stride, max_splits, window,          \
                                               {score_scale, cap}, value_scale});                                    \
  }

#define DECODE_FORMS(head_dim, head_tiles, rows, blocks, fp8_blocks)                                               \
  DECODE(attention_decode_d##head_dim##_h##rows##_bf16, Bf16, HalfPages, head_dim, head_tiles, blocks)             \
  DECODE(attention_decode_d##head_dim##_h##rows##_f16, F16, HalfPages, head_dim, head_tiles, blocks)               \
  DECODE(attention_decode_d##head_dim##_h##rows##_fp8_bf16, Bf16, Fp8Pages, head_dim, head_tiles, fp8_blocks)      \
  DECODE(attention_decode_d##head_dim##_h##rows##_fp8_f16, F16, Fp8Pages, head_dim, head_tiles, fp8_blocks)

DECODE_FORMS(64, 1, 8, 4, 4)
DECODE_FORMS(96, 1, 8, 4, 3)
DECODE_FORMS(128, 1, 8, 4, 4)
DECODE_FORMS(256, 1, 8, 2, 2)
DECODE_FORMS(64, 2, 16, 3, 2)
DECODE_FORMS(96, 2, 16, 3, 2)
DECODE_FORMS(128, 2, 16, 2, 2)

#define COMBINE(name, T)                                                                                      \
  extern "C" __global__ __launch_bounds__(kThreads, 8) void name(                                             \
      void* out, const float* partial, const float2* stats, const int* lengths, int heads, int head_dim,      \
      int max_splits, int window) {                                                                           \
    combine<T>(out, partial, stats, lengths, heads, head_dim, max_splits, window);                            \
  }

COMBINE(attention_combine_bf16, Bf16)
COMBINE(attention_combine_f16, F16)
