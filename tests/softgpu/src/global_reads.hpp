// What one block has read of global memory in this launch, so that a later write to the same byte can be judged.
//
// Kept by granules of 16 bytes with a mask of the bytes: cheap enough for streaming weights, exact to the byte.
// Readers are exact to the lane where they have read the same bytes of a granule, else to the warp. A read through
// the read-only path needs only its bytes, since nobody may write them at all.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace soft {

struct Accessor;
struct SpaceLanes;

constexpr uint32_t kGranuleShift = 4, kGranules = 256;  // of a 4 KB page

struct ReadSlot {
  uint32_t time = 0;
  uint32_t warps = 0;
  uint32_t clock = 0;  // what the readers knew of other blocks, in the grid's ClockIndex
  uint32_t lanes = 0;  // all of which have read all of the bytes; 0: not told apart
  uint16_t bytes = 0;
  uint16_t site = 0;
};

using ByteMasks = std::array<uint16_t, kGranules>;  // of a page's granules, which bytes

// Granules one after the other of which one instruction has read the same bytes.
struct ReadRun {
  uint16_t first, count, bytes, site;
};

struct ReadPage {
  bool cached, plain;  // the next two, or the slots, are in use
  ByteMasks read_only;
  std::array<uint16_t, kGranules> read_only_sites;
  std::array<ReadSlot, kGranules> slots;
  std::vector<std::pair<uint32_t, ReadSlot>> more;  // (granule, reads that one slot cannot hold)
  void clear();
  std::vector<ReadRun> plain_runs() const;
  std::vector<ReadRun> read_only_runs() const;
};

class GlobalReads {
 public:
  void reset();
  // The accessor's lane is set to each of the lanes in turn; `bytes` are those of one lane.
  void note(Accessor who, const SpaceLanes& lanes, uint32_t bytes);
  void note_read_only(Accessor who, const SpaceLanes& lanes, uint32_t bytes);
  // A finding where another thread of the block has read these bytes and the accessor, who writes them, does not
  // know.
  void check_write(Accessor who, const SpaceLanes& lanes, uint32_t bytes);
  const std::unordered_map<uint64_t, std::unique_ptr<ReadPage>>& pages() const { return pages_; }

 private:
  ReadPage& page_of(uint64_t page);
  const ReadPage* find(uint64_t page) const;
  static void note_more(ReadPage& page, uint32_t granule, const ReadSlot& slot);
  bool unordered(const Accessor& who, const ReadSlot& slot, uint32_t& thread) const;

  static constexpr size_t kCached = 64, kSpare = 2048;
  std::unordered_map<uint64_t, std::unique_ptr<ReadPage>> pages_;
  std::vector<std::unique_ptr<ReadPage>> spare_;
  std::pair<uint64_t, ReadPage*> cache_[kCached] = {};
};
}  // namespace soft
