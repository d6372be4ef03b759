// A block's shared memory in prefill attention, and how tiles of K and V get there.
//
// Kept apart since what a warp computes does not depend on it: pages of T and of fp8 differ here and nowhere else.
//
// Tiles of K and V come by cp.async, the next one while this one is used. Tokens that no row of the block sees are
// not read and are zeros in shared memory, for 0 * NaN is NaN; nor are their page numbers read.
//
//   shared memory, pages of T:    Q | K, V | K, V           this tile and the next
//                 fp8 pages:      Q | K, V | raw | raw      raw: K and V of this tile and the next as they lie in
//                                                           pages; a thread decodes what it has copied itself
//
// Rows of shared memory are head_dim halves, in chunks of 16 bytes; chunk c of row r lies at c ^ swizzle(r), so that
// the eight rows that an ldmatrix takes at once lie in different banks.
#pragma once
#include "attention.cuh"
#include "memory.cuh"

// The shape of one form, and where things lie in shared memory.
template <typename Pages, int kHeadDim_, int kWarps_, int kRowTiles_, int kKeys_>
struct Form {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kThreads = kWarps_ * kWarp;
  static constexpr int kRowTiles = kRowTiles_;  // of 16 rows, of a warp
  static constexpr int kKeys = kKeys_;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps_ * kWarpRows;
  static constexpr int kPages = kKeys / kPageTokens;  // of a tile

  static constexpr int kRowBytes = 2 * kHeadDim;
  static constexpr int kKeysBytes = kKeys * kRowBytes;  // K of a tile
  static constexpr int kTile = kRows * kRowBytes;       // where K and V begin
  static constexpr bool kRaw = Pages::kBytes == 1;
  static constexpr int kStages = kTile + (kRaw ? 2 * kKeysBytes : 0);
  static constexpr int kStageBytes = 2 * kKeysBytes / (kRaw ? 2 : 1);

  // Pieces of 16 bytes in one page's K, and how many of them a thread copies.
  static constexpr int kRowPieces = kHeadDim * Pages::kBytes / 16;
  static constexpr int kPagePieces = kPageTokens * kRowPieces;
  static constexpr int kEach = (kPagePieces + kThreads - 1) / kThreads;

  // Of 16-byte chunks c of row r: rows r and r + 1 are kChunks apart, modulo the 8 chunks that fill all banks.
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kSpan = kChunks % 8 == 0 ? 128 : 64;  // bytes within which chunks are exchanged
  static_assert(kChunks % 8 == 0 || kChunks % 8 == 4, "head_dim is a multiple of 32");
  static u32 swizzle(int row) { return kSpan == 128 ? row % 8 : row / 2 % 4; }
  static u32 place(int row, int chunk) { return row * kRowBytes + (chunk ^ swizzle(row)) * 16; }
  // `address` is of chunk 0 or 1 of a row; the address of the chunk `bytes` further, a multiple of 32.
  static u32 along(u32 address, int bytes) { return (address ^ (bytes % kSpan)) + bytes / kSpan * kSpan; }
};

// Brings tiles of K and V into shared memory: 16 bytes at a time, neighbouring threads side by side.
template <typename T, typename Pages, typename F>
struct Loader {
  const u8* kv;  // this thread's first piece of K in page 0
  i64 page_bytes, value_bytes;
  const int* table;
  u8* memory;    // shared, all of it
  u32 shared;    // its address
  int from, to;  // positions that some row sees
  int pages[F::kPages];

  // A thread's pieces of a page's K, and of its V: number i is in this row, and is its piece `column`.
  static constexpr bool kWholeRows = F::kThreads % F::kRowPieces == 0;
  static bool exists(int i) {
    return F::kPagePieces % F::kThreads == 0 || threadIdx.x + i * F::kThreads < F::kPagePieces;
  }
  static int row(int i) {
    const int piece = threadIdx.x;
    return kWholeRows ? piece / F::kRowPieces + i * (F::kThreads / F::kRowPieces)
                      : (piece + i * F::kThreads) / F::kRowPieces;
  }
  static int column(int i) { return (threadIdx.x + (kWholeRows ? 0 : i * F::kThreads)) % F::kRowPieces; }

  // The page numbers of the tile from position `first` on, of those pages that have a token to read.
  void look_up(int first) {
#pragma unroll
    for (int p = 0; p < F::kPages; ++p) {
      const int position = first + p * kPageTokens;
      pages[p] = position < to && position + kPageTokens > from ? table[position / kPageTokens] : 0;
    }
  }

  // Starts to copy the tile that was looked up.
  void copy(int first, int stage) const {
    const u32 at = shared + F::kStages + stage * F::kStageBytes;
#pragma unroll
    for (int p = 0; p < F::kPages; ++p) {
      const u8* page = kv + pages[p] * page_bytes;
#pragma unroll
      for (int i = 0; i < F::kEach; ++i) {
        if (!exists(i)) continue;
        const int token = first + p * kPageTokens + row(i) - from;
        const bool seen = u32(token) < u32(to - from);
        copy_async(at + place(p, i), page + i * F::kThreads * 16, seen);
        copy_async(at + F::kStageBytes / 2 + place(p, i), page + value_bytes + i * F::kThreads * 16, seen);
      }
    }
    commit_copies();
  }

  // Where piece i of page p lands: where it is used, or in the order of the pieces where it is to be decoded.
  static u32 place(int p, int i) {
    if (F::kRaw) return (p * F::kPagePieces + threadIdx.x + i * F::kThreads) * 16;
    return p * kPageTokens * F::kRowBytes + F::place(row(i), column(i));
  }

  // Raw pages: T's of the stage, from this thread's own copies.
  void decode(int stage) const {
#pragma unroll
    for (int kv = 0; kv < 2; ++kv)
#pragma unroll
      for (int p = 0; p < F::kPages; ++p)
#pragma unroll
        for (int i = 0; i < F::kEach; ++i) {
          if (!exists(i)) continue;
          const u8* from = memory + F::kStages + stage * F::kStageBytes + kv * F::kStageBytes / 2 + place(p, i);
          const Vec raw = *reinterpret_cast<const Vec*>(from);
          u8* to = memory + F::kTile + kv * F::kKeysBytes + p * kPageTokens * F::kRowBytes;
          // Lanes take turns in which of their two chunks comes first, so that eight side by side meet in no bank.
          const int turn = (threadIdx.x / 4 ^ F::swizzle(row(i))) % 2;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const bool upper = half ^ turn;
            Vec decoded;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const u32 words[1] = {upper ? raw.pair[2 + j / 2] : raw.pair[j / 2]};
              decoded.pair[j] = Pages::pair(words, j % 2);
            }
            *reinterpret_cast<Vec*>(to + F::place(row(i), 2 * column(i) + upper)) = decoded;
          }
        }
  }
};
