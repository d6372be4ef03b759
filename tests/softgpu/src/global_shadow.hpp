// Who has written which global byte in this launch, and which blocks have read what: the rules across blocks.
//
// A read of what another thread has written, and a write over another's write, are judged when they happen. A write
// over what another block has read is judged when the grid ends, from what both knew at the time: so it is found in
// whatever order blocks ran. Cells and locks exist only for pages that the launch touches.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "global_reads.hpp"

namespace soft {

class GridMemory;

struct WriteCell {      // of 4 bytes, or of one where the word is split
  uint32_t time = 0;    // 0: not written
  uint32_t block = 0;
  uint32_t clock = 0;   // what the writer knew of other blocks, in the grid's ClockIndex
  uint16_t thread = 0, site = 0;
  bool split = false;     // `time` is the index of the first of four byte cells
  bool of_block = false;  // of a strong write: its scope is the block
};

// How an access takes part in the order of its bytes: not at all, among the threads of its block, or among all.
enum class Strength : uint8_t { Weak, Block, Grid };

struct BlockReads {  // of one page, by a block that has ended
  uint32_t block;
  bool read_only;                   // through the read-only path
  std::vector<ReadRun> runs;
  std::unique_ptr<ReadPage> exact;  // instead of runs, of a block that synchronises with others
};

struct GridPage {
  std::mutex mutex;
  std::vector<WriteCell> cells, parts;  // of weak stores; cells: none, or one a word
  // The last strong write to a byte since the last weak one: an atomic, or a relaxed, volatile or release store. By
  // offset; kept apart because strong accesses race with weak ones and, within their scope, not with one another.
  std::unordered_map<uint32_t, WriteCell> strong;
  std::vector<BlockReads> reads;
};

// A block's shortcut to the pages that it used last.
struct GridPageCache {
  static constexpr size_t kCached = 64;
  std::pair<uint64_t, GridPage*> at[kCached] = {};
};

class GlobalShadow {
 public:
  // The accessor's lane is set to each of the lanes in turn; `bytes` are those of one lane.
  void check_read(Accessor who, const SpaceLanes& lanes, uint32_t bytes, Strength strength, bool read_only);
  void write(Accessor who, const SpaceLanes& lanes, uint32_t bytes, Strength strength);
  void add_reads(uint32_t block, const GlobalReads& reads, bool synchronises);
  void finish(GridMemory& grid);  // judges writes over reads; fills the grid's pages

 private:
  static constexpr size_t kShards = 64, kFilterWords = 2048;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<uint64_t, std::unique_ptr<GridPage>> pages;
  };

  Shard& shard_of(uint64_t page) { return shards_[page % kShards]; }
  GridPage& page_at(uint64_t page);
  GridPage& page_at(GridPageCache& cache, uint64_t page);
  void mark_written(uint64_t number, GridPage& page);
  static uint64_t filter_hash(uint64_t page) { return (page * 0x9e3779b97f4a7c15ull) >> (64 - 17); }
  // False: nobody has written the page. True for some others too.
  bool may_be_written(uint64_t page) const {
    const uint64_t hash = filter_hash(page);
    return filter_[hash / 64].load(std::memory_order_acquire) >> hash % 64 & 1;
  }
  static void add_entry(GridPage& page, BlockReads entry);

  Shard shards_[kShards];
  std::atomic<uint64_t> filter_[kFilterWords] = {};
};
}  // namespace soft
