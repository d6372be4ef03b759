// What a launch and each of its running blocks hold while they run. Private to the memory of the soft GPU.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "async.hpp"
#include "counters_access.hpp"
#include "global_cache.hpp"
#include "global_reads.hpp"
#include "global_shadow.hpp"
#include "memory.hpp"
#include "memory_arena.hpp"
#include "memory_clocks.hpp"
#include "shared_shadow.hpp"

namespace soft {

// The lanes of a request that go to one space, and their offsets within it (global: addresses).
struct SpaceLanes {
  uint32_t mask;
  const uint64_t* address;
};

// Also right at the end of the address space, where a negative index leads.
constexpr bool within(uint64_t offset, uint64_t bytes, uint64_t size) {
  return offset <= size && bytes <= size - offset;
}
inline bool inside(const Window& window, uint64_t address, uint64_t bytes) {
  return address >= window.base && within(address - window.base, bytes, window.end - window.base);
}

// What one lane moves; a memcpy of a width that the compiler does not know would cost a call.
inline void copy_lane(void* to, const void* from, uint32_t bytes) {
  switch (bytes) {
    case 1: std::memcpy(to, from, 1); return;
    case 2: std::memcpy(to, from, 2); return;
    case 4: std::memcpy(to, from, 4); return;
    case 8: std::memcpy(to, from, 8); return;
    case 16: std::memcpy(to, from, 16); return;
    default: std::memcpy(to, from, bytes);
  }
}

// Small numbers for the instructions that access memory.
class SiteTable {
 public:
  uint16_t index_of(const Instruction* instruction);
  const Instruction* at(uint16_t index) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const Instruction*, uint16_t> numbers_;
  std::vector<const Instruction*> instructions_;
};

class GridMemory {
 public:
  explicit GridMemory(const GridShape& shape);

  GridShape shape;
  std::string kernel;
  uint32_t threads, warps;
  uint32_t dynamic_base, shared_bytes;
  bool checks, adversarial, float_atomics;
  SiteTable sites;
  ClockIndex clocks;
  Publications publications;
  GlobalShadow shadow;
  std::vector<uint64_t> written, read;  // pages, once the grid has ended

  // As findings name it: a thread of any block, at an instruction.
  Site site_of(uint32_t block, uint32_t thread, uint16_t site) const;
};

class BlockMemory {
 public:
  // Blocks are recycled by the host thread that ran them: their tables are large.
  void begin(GridMemory& grid, uint32_t index, KernelCounters& counters);
  void finish();

  uint16_t site_index(const Instruction* instruction) {
    const size_t slot = (reinterpret_cast<uintptr_t>(instruction) >> 4) % kSiteSlots;
    if (site_slots_[slot].first != instruction || !instruction) [[unlikely]]
      site_slots_[slot] = {instruction, grid->sites.index_of(instruction)};
    return site_slots_[slot].second;
  }
  AccessCount& at_site(uint16_t site) {
    if (site >= site_counts_.size()) [[unlikely]] site_counts_.resize(site + 1);
    return site_counts_[site];
  }
  // The live allocation that holds all of the range; null: none does.
  const Window* window(uint64_t address, uint64_t bytes) {
    const Window& last = windows_[last_window_];
    if (windows_generation_ == allocation_generation() && inside(last, address, bytes)) [[likely]] return &last;
    return find_window(address, bytes);
  }
  // What a thread knows of other blocks, as a number of the grid's ClockIndex.
  uint32_t known_clock(uint32_t thread) { return grid->clocks.id_of(clocks.acquired(thread)); }
  Accessor accessor(const Site& site, uint32_t warp, uint32_t lane) {
    return {*this, site, warp, lane, site_index(site.instruction), clocks.now(), clocks.floor(warp)};
  }

  GridMemory* grid = nullptr;
  KernelCounters* counters = nullptr;
  uint32_t index = 0;
  BlockClocks clocks;
  std::vector<uint8_t> shared, local;
  SharedShadow shared_shadow;
  AsyncCopies async;
  GlobalReads reads;
  GridPageCache pages;
  GlobalCache cache;
  uint64_t random = 0;

 private:
  const Window* find_window(uint64_t address, uint64_t bytes);

  static constexpr size_t kSiteSlots = 256, kWindows = 8;
  std::pair<const Instruction*, uint16_t> site_slots_[kSiteSlots] = {};
  std::vector<AccessCount> site_counts_;
  Window windows_[kWindows];
  uint64_t windows_generation_ = 0;
  uint32_t last_window_ = 0, next_window_ = 0;
};

void global_load(const Request& request, const SpaceLanes& lanes, uint8_t* out);
void global_store(const Request& request, const SpaceLanes& lanes, const uint8_t* from);
void global_atomic(const Request& request, const SpaceLanes& lanes, AtomicOp op, AtomicType type, const uint8_t* a,
                   const uint8_t* b, uint8_t* out);
// What cp.async reads: `bytes[lane]` of each lane's source (0: none), aligned to request.bytes; `out` has rows of
// kCopyBytes.
void global_copy_source(const Request& request, const SpaceLanes& lanes, const uint32_t* bytes, uint8_t* out);
// The same bytes as the block sees them now, without rules.
void global_peek(BlockMemory& block, uint64_t address, uint32_t bytes, uint8_t* out);

void shared_load(const Request& request, const SpaceLanes& lanes, uint8_t* out);
void shared_store(const Request& request, const SpaceLanes& lanes, const uint8_t* from);
void shared_atomic(const Request& request, const SpaceLanes& lanes, AtomicOp op, AtomicType type, const uint8_t* a,
                   const uint8_t* b, uint8_t* out);
uint32_t checked_shared(const Request& request, int lane, uint64_t offset, uint32_t bytes);  // the offset

// Of a request that may only go to shared memory; `offsets` (kLanes) is where they are put.
SpaceLanes shared_lanes(const Request& request, uint64_t* offsets);
}  // namespace soft
