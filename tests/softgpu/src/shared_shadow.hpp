// Who touched which byte of a block's shared memory, and what is not allowed next: races by lane, reads of bytes that
// nobody wrote, asynchronous copies seen too early.
//
// Words of 4 bytes have one cell each; a word that is accessed in parts is split into four. A cell keeps the last
// write and all reads since that are not ordered before one another: one warp's lanes, or several warps at the same
// time, or else a list.
#pragma once
#include <cstdint>
#include <vector>

#include "memory_clocks.hpp"

namespace soft {

class BlockMemory;
struct Site;

// The lane that accesses, in the terms that cells keep.
struct Accessor {
  BlockMemory& block;
  const Site& site;
  uint32_t warp, lane;
  uint16_t site_index;
  uint32_t now, floor;
  uint32_t thread() const { return warp * 32 + lane; }
  uint32_t bit() const { return 1u << lane; }
};

class SharedShadow {
 public:
  void reset(uint32_t bytes);
  void read(const Accessor& who, uint32_t offset, uint32_t bytes);
  void write(const Accessor& who, uint32_t offset, uint32_t bytes);
  void strong_read(const Accessor& who, uint32_t offset, uint32_t bytes);
  void strong_write(const Accessor& who, uint32_t offset, uint32_t bytes);     // atomics, relaxed or volatile stores
  void require_written(const Accessor& who, uint32_t offset, uint32_t bytes);  // what an atomic reads
  // A row of a matrix, 16 bytes: word i goes to, or comes from, lane lanes[i].
  void read_row(Accessor who, uint32_t offset, const uint8_t* lanes);
  void write_row(Accessor who, uint32_t offset, const uint8_t* lanes);
  void copy_issued(const Accessor& who, uint32_t offset, uint32_t bytes);
  void copy_landed(const Accessor& who, uint32_t offset, uint32_t bytes);

 private:
  enum Flags : uint16_t {
    kSplit = 1,        // readers: the first of four byte cells
    kList = 2,         // readers: which list
    kWritten = 4,      // by a strong store, though there has been no weak one
    kStrongReads = 8,  // the reads are strong accesses: they race with weak ones as writes do, not with one another
    kInFlight = 16,    // an asynchronous copy has been issued and not waited for
    kLanded = 32,      // the write was an asynchronous copy
  };
  struct Cell {
    uint32_t write_time = 0;                // of the last weak write; 0: none
    uint16_t writer = 0, write_site = 0;
    uint32_t read_time = 0, readers = 0;  // lanes of `read_warp`; warps where that is kManyWarps
    uint16_t read_warp = 0, read_site = 0;
    uint16_t flags = 0;
    bool operator==(const Cell&) const = default;
  };
  struct Reader {
    uint32_t time, lanes;
    uint16_t warp, site;
  };
  static constexpr uint16_t kManyWarps = 0xFFFF;

  template <class F>
  void each_cell(uint32_t offset, uint32_t bytes, F visit);
  void split(Cell& cell);
  void unsplit(Cell& cell);
  void read_cell(const Accessor& who, Cell& cell, uint32_t byte);
  void check_write(const Accessor& who, const Cell& cell, uint32_t byte, const char* verb);
  void write_cell(const Accessor& who, Cell& cell, uint32_t byte, uint16_t flags);
  void note_read(const Accessor& who, Cell& cell);
  void note_concurrent_read(const Accessor& who, Cell& cell);
  void check_written(const Accessor& who, const Cell& cell, uint32_t byte, const char* verb);
  const Reader* concurrent_reader(const Accessor& who, const Cell& cell);
  void readers_of(const Cell& cell, std::vector<Reader>& out) const;
  void forget_readers(Cell& cell);
  void settle_strong(Cell& cell);
  int unknown_lane(const Accessor& who, const Reader& reader) const;
  void report(const Accessor& who, const char* rule, const char* verb, uint32_t byte, const char* other_verb,
              uint32_t other_thread, uint16_t other_site) const;

  std::vector<Cell> cells_, parts_;
  std::vector<uint32_t> free_parts_;
  std::vector<std::vector<Reader>> lists_;
  std::vector<uint32_t> free_lists_;
  std::vector<Reader> scratch_;
};
}  // namespace soft
