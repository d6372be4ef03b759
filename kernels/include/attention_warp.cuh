// What one warp of decode attention does: a running softmax of up to 16 query heads over pages of their K/V head.
//
// Everything stays in registers, from 16-byte loads of K and V to the weighted sum, since the order in which mma sums
// over k is free and so is the numbering of its rows and columns. A tile is the 16 tokens of a page by a part of the
// head dimension (64 elements in half precision); g = lane / 4, t = lane % 4, and 8 heads are mma's columns:
//
//   scores[token, head] = K * Q^T                          out[d, head] = V^T * P^T
//   a: K as it lies: lane (g, t) holds 8 elements          a: V^T: lane (g, t) loads 8 elements of four tokens,
//      of tokens g and g + 8                                  pairs of which become one register by a byte permute
//
//            elements 0-7 8-15 16-23 24-31                           elements 0-7  8-15  ..  56-63
//      token g      | t=0| t=1| t=2 | t=3 |  64 bytes          token 2t     | g=0 | g=1 | .. | g=7 |  128 bytes
//      token g + 8  | t=0| t=1| t=2 | t=3 |                    token 2t + 1 | g=0 | g=1 | .. | g=7 |
//                                                              tokens 2t + 8, 2t + 9 likewise
//   d: lane (g, t) gets tokens g, g + 8                    b: P^T: heads g, tokens 2t, 2t + 1: the scores' 8 x 8
//      of heads 2t, 2t + 1                                    matrices transposed, by two shuffles each
//                                                          d: lane (g, t) gets heads 2t, 2t + 1 of its elements
//
// A step is as many pages as 32 registers a lane hold, 4 KB of a warp. As soon as a tile of K has been multiplied its
// registers take the same tile of V, and after that the next step's K: loads are in flight all the time.
#pragma once
#include "attention.cuh"

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

// What makes q . k a score, as an exponent of 2. Without a cap (0): scale * q . k. With one, an exponent of 2 as
// well: cap * tanh(x), where e^2x = 2^(scale * q . k).
struct Softmax {
  float scale, cap;
};

// K and V of one head: K of page 0, the way to the next page and the way from K to V, in bytes.
struct Cache {
  const u8* keys;
  i64 page_bytes, value_bytes;
};

// The shape of one form of `decode`.
template <typename Pages, int kHeadDim_, int kHeadTiles_>
struct Form {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kRows = 8 * kHeadTiles;  // query heads of an item, at most
  static constexpr int kLoad = 16 / Pages::kBytes;
  // Elements of one token that a lane holds in a tile of V: 8 lanes side by side cover the tile's width.
  static constexpr int kValueRun = kHeadDim % (8 * kLoad) == 0 ? kLoad : kHeadDim % 64 == 0 ? 8 : 4;
  static constexpr int kWidth = 8 * kValueRun;
  static constexpr int kAcross = kHeadDim / kWidth;  // tiles
  // The same of K: 4 lanes side by side cover a chunk, and a tile is one or more chunks.
  static constexpr int kKeyRun = kWidth / 4 < kLoad ? kWidth / 4 : kLoad;
  static constexpr int kChunks = kWidth / (4 * kKeyRun);
  static constexpr int kKeyWords = kKeyRun * Pages::kBytes / 4;
  static constexpr int kValueWords = kValueRun * Pages::kBytes / 4;
  static constexpr int kTileWords = 4 * kValueWords;
  static_assert(kTileWords == 2 * kChunks * kKeyWords, "K and V take turns in the same registers");
  // Pages of a step: as many as 32 registers hold, but one at least.
  static constexpr int kFit = 32 / (kTileWords * kAcross);
  static constexpr int kPages = kFit > 0 ? kFit : 1;
  // A row of shared memory, of one head's sums. A row more shifts by 2 banks, and with runs of 16 elements 32 columns
  // more by 8, so that the lanes' 8-byte stores meet in no bank (with runs of 4 they do, by twos).
  static constexpr int kRowFloats = kHeadDim + (kValueRun == 16 ? kHeadDim / 4 : 0) + 2;

  static int column(int d) { return d + (kValueRun == 16 ? d / 32 * 8 : 0); }
};

// One warp's part of an item: a running softmax over the pages that it takes.
template <typename T, typename Pages, typename F>
struct Warp {
  using Tile = u32[F::kTileWords];
  static constexpr u32 kPageStep = kWarps * kPageTokens;  // from one of the warp's pages to the next

  int g, t;
  u32 query[F::kHeadTiles][F::kAcross][F::kChunks][F::kKeyRun / 2];  // [.][.][.][i]: elements 2i, 2i + 1 of the run
  // Of heads 8n + 2t and 8n + 2t + 1, [n][0] and [n][1]; the sum of this lane's tokens only.
  float maximum[F::kHeadTiles][2], sum[F::kHeadTiles][2];
  float out[F::kHeadTiles][F::kHeadDim / 16][4];  // [n][m]: elements 2m, 2m + 1 of the lane's runs; see mma.cuh's d

  // q: of the item's first head; `rows` heads.
  Warp(const T* q, int rows) : g(threadIdx.x % kWarp / 4), t(threadIdx.x % 4) {
#pragma unroll
    for (int n = 0; n < F::kHeadTiles; ++n) {
      const int row = 8 * n + g;
#pragma unroll
      for (int tile = 0; tile < F::kAcross; ++tile)
#pragma unroll
        for (int chunk = 0; chunk < F::kChunks; ++chunk)
#pragma unroll
          for (int i = 0; i < F::kKeyRun / 2; i += 4) {
            u32* to = &query[n][tile][chunk][i];
            to[0] = to[1] = to[2] = to[3] = 0;
            load_seen<4>(to, q + row * F::kHeadDim + t * F::kKeyRun + key_start(tile, chunk) + 2 * i, row, rows);
          }
      maximum[n][0] = maximum[n][1] = minus_infinity();
      sum[n][0] = sum[n][1] = 0.0f;
#pragma unroll
      for (int m = 0; m < F::kHeadDim / 16; ++m) out[n][m][0] = out[n][m][1] = out[n][m][2] = out[n][m][3] = 0.0f;
    }
  }

  // Where the runs of lane 0 start.
  static constexpr int key_start(int tile, int chunk) { return tile * F::kWidth + chunk * 4 * F::kKeyRun; }
  static constexpr int value_start(int tile) { return tile * F::kWidth; }

  // A tile of one page of K or V, from where the lane's first run lies. The page's first token is number `first` of
  // those that are seen, of which there are `seen`; tokens before them (a negative number is a large one) and beyond
  // are not read.
  void load_keys(Tile& words, const u8* run, int tile, u32 first, u32 seen) const {
#pragma unroll
    for (int chunk = 0; chunk < F::kChunks; ++chunk)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        load_seen<F::kKeyWords>(words + (2 * chunk + half) * F::kKeyWords,
                                run + (8 * half * F::kHeadDim + key_start(tile, chunk)) * Pages::kBytes,
                                first + g + 8 * half, seen);
  }

  void load_values(Tile& words, const u8* run, int tile, u32 first, u32 seen) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = i % 2 + i / 2 * 8;  // beyond 2t
      load_seen<F::kValueWords>(words + i * F::kValueWords,
                                run + (token * F::kHeadDim + value_start(tile)) * Pages::kBytes,
                                first + 2 * t + token, seen);
    }
  }

  // scores += K * Q^T
  void multiply_keys(float (&scores)[F::kHeadTiles][4], const Tile& words, int tile) const {
#pragma unroll
    for (int chunk = 0; chunk < F::kChunks; ++chunk) {
      const u32* low = words + 2 * chunk * F::kKeyWords;
      const u32* high = low + F::kKeyWords;
#pragma unroll
      for (int i = 0; i < F::kKeyRun / 2; i += 2) {
        const u32 a[4] = {Pages::pair(low, i), Pages::pair(high, i),  //
                          Pages::pair(low, i + 1), Pages::pair(high, i + 1)};
#pragma unroll
        for (int n = 0; n < F::kHeadTiles; ++n) {
          const u32 b[2] = {query[n][tile][chunk][i], query[n][tile][chunk][i + 1]};
          mma<T>(scores[n], a, b);
        }
      }
    }
  }

  // out += V^T * P^T
  void multiply_values(const Tile& words, const u32 (&weights)[F::kHeadTiles][2], int tile) {
    const u32* v[4] = {words, words + F::kValueWords, words + 2 * F::kValueWords, words + 3 * F::kValueWords};
#pragma unroll
    for (int i = 0; i < F::kValueRun; i += 2) {
      const u32 a[4] = {Pages::across(v[0], v[1], i), Pages::across(v[0], v[1], i + 1),  //
                        Pages::across(v[2], v[3], i), Pages::across(v[2], v[3], i + 1)};
#pragma unroll
      for (int n = 0; n < F::kHeadTiles; ++n) mma<T>(out[n][(tile * F::kValueRun + i) / 2], a, weights[n]);
    }
  }

  // Takes a step's products q . k into the softmax: `weights` become 2^(score - maximum), as mma's b. first, seen: as
  // above, of the step's first page.
  void soften(float (&scores)[F::kPages][F::kHeadTiles][4], u32 (&weights)[F::kPages][F::kHeadTiles][2], u32 first,
              u32 seen, Softmax softmax) {
#pragma unroll
    for (int n = 0; n < F::kHeadTiles; ++n) {
      float high[2] = {maximum[n][0], maximum[n][1]};
#pragma unroll
      for (int p = 0; p < F::kPages; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float score = scores[p][n][i] * softmax.scale;
          if (softmax.cap > 0.0f) score = softmax.cap - 2.0f * softmax.cap * reciprocal_fast(1.0f + exp2_fast(score));
          if (first + p * kPageStep + g + i / 2 * 8 >= seen) score = minus_infinity();
          scores[p][n][i] = score;
          high[i % 2] = fmaxf(high[i % 2], score);
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int lanes = 4; lanes < kWarp; lanes *= 2) high[h] = fmaxf(high[h], __shfl_xor_sync(~0u, high[h], lanes));
        const float shrink = exp2_fast(maximum[n][h] - reference(high[h]));
        maximum[n][h] = high[h];
        sum[n][h] *= shrink;
#pragma unroll
        for (int m = 0; m < F::kHeadDim / 16; ++m) {
          out[n][m][h] *= shrink;
          out[n][m][h + 2] *= shrink;
        }
        high[h] = reference(high[h]);
      }
#pragma unroll
      for (int p = 0; p < F::kPages; ++p)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float even = exp2_fast(scores[p][n][2 * half] - high[0]);
          const float odd = exp2_fast(scores[p][n][2 * half + 1] - high[1]);
          sum[n][0] += even;
          sum[n][1] += odd;
          weights[p][n][half] = transposed(T::pack(even, odd));
        }
    }
  }

  // From tokens by rows (lane (g, t): token g, heads 2t, 2t + 1) to heads by rows (head g, tokens 2t, 2t + 1).
  u32 transposed(u32 pair) const {
    const u32 even = __shfl_sync(~0u, pair, 8 * t + g / 2);
    const u32 odd = __shfl_sync(~0u, pair, 8 * t + 4 + g / 2);
    return __byte_perm(even, odd, g % 2 ? 0x7632 : 0x5410);
  }

  // Attends to this warp's pages, every fourth one, of the positions from `from` to `to`. table: of the sequence.
  void attend(Cache cache, const int* table, i64 from, i64 to, Softmax softmax) {
    constexpr int kStep = kWarps * F::kPages;
    const int lane = threadIdx.x % kWarp;
    const int key_run = (g * F::kHeadDim + t * F::kKeyRun) * Pages::kBytes;
    const int value_run = (2 * t * F::kHeadDim + g * F::kValueRun) * Pages::kBytes;
    cache.keys += key_run;
    cache.value_bytes += value_run - key_run;

    const i64 page = from / kPageTokens + threadIdx.x / kWarp;
    const u32 seen = u32(to - from);
    u32 first = u32(page * kPageTokens - from);
    // Lane p reads the number of the step's p-th page; where there is none it is 0, and nothing is read there.
    table += page + kWarps * lane;
    int left = int((to + kPageTokens - 1) / kPageTokens - page) - kWarps * lane;
    int number = lane < F::kPages && left > 0 ? __ldg(table) : 0;

    const u8* keys[F::kPages];
    Tile tiles[F::kPages][F::kAcross] = {};
#pragma unroll
    for (int p = 0; p < F::kPages; ++p) {
      keys[p] = cache.keys + __shfl_sync(~0u, number, p) * cache.page_bytes;
#pragma unroll
      for (int tile = 0; tile < F::kAcross; ++tile)
        load_keys(tiles[p][tile], keys[p], tile, first + p * kPageStep, seen);
    }
    while (int(first) < int(seen)) {
      table += kStep;
      left -= kStep;
      number = lane < F::kPages && left > 0 ? __ldg(table) : 0;

      float scores[F::kPages][F::kHeadTiles][4] = {};
#pragma unroll
      for (int p = 0; p < F::kPages; ++p)
#pragma unroll
        for (int tile = 0; tile < F::kAcross; ++tile) {
          multiply_keys(scores[p], tiles[p][tile], tile);
          load_values(tiles[p][tile], keys[p] + cache.value_bytes, tile, first + p * kPageStep, seen);
        }
      u32 weights[F::kPages][F::kHeadTiles][2];
      soften(scores, weights, first, seen, softmax);
      first += F::kPages * kPageStep;
#pragma unroll
      for (int p = 0; p < F::kPages; ++p) {
        keys[p] = cache.keys + __shfl_sync(~0u, number, p) * cache.page_bytes;
#pragma unroll
        for (int tile = 0; tile < F::kAcross; ++tile) {
          multiply_values(tiles[p][tile], weights[p], tile);
          load_keys(tiles[p][tile], keys[p], tile, first + p * kPageStep, seen);
        }
      }
    }
  }

  // Leaves in shared memory a row of sums for each head, [warp][even heads, then odd heads], and in `stats` maximum
  // and sum, [warp][head].
  void leave(float* sums, float2* stats, int rows) {
    const int warp = threadIdx.x / kWarp;
    const int half = (rows + 1) / 2;
#pragma unroll
    for (int n = 0; n < F::kHeadTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int lanes = 4; lanes < kWarp; lanes *= 2) sum[n][h] += __shfl_xor_sync(~0u, sum[n][h], lanes);
#pragma unroll
    for (int n = 0; n < F::kHeadTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int head = 8 * n + 2 * t + h;
        if (head >= rows) continue;
        if (g == 0) stats[warp * rows + head] = float2{maximum[n][h], sum[n][h]};
        float* row = sums + (warp * 2 * half + h * half + head / 2) * F::kRowFloats;
#pragma unroll
        for (int m = 0; m < F::kHeadDim / 16; ++m) {
          const int run = 2 * m / F::kValueRun, within = 2 * m % F::kValueRun;
          float2* to = reinterpret_cast<float2*>(row + F::column(value_start(run) + g * F::kValueRun) + within);
          *to = float2{out[n][m][h], out[n][m][h + 2]};
        }
      }
  }
};
