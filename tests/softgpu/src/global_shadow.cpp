// The rules of global memory within one launch. See the header.
#include "global_shadow.hpp"

#include <algorithm>
#include <bit>

#include "memory_block.hpp"

namespace soft {
namespace {

constexpr uint32_t kWord = 4, kWords = kPageBytes / kWord;

// Visits the cells of a range within one page; `whole` cells are not split.
template <class F>
void each_cell(GridPage& page, uint64_t address, uint32_t bytes, F visit) {
  uint32_t offset = uint32_t(address % kPageBytes);
  const uint32_t end = offset + bytes;
  while (offset < end) {
    WriteCell& cell = page.cells[offset / kWord];
    const bool whole = offset % kWord == 0 && end - offset >= kWord;
    if (whole && !cell.split) {
      visit(cell, address - address % kPageBytes + offset);
      offset += kWord;
      continue;
    }
    if (!cell.split) {
      const WriteCell copy = cell;
      cell = WriteCell();
      cell.split = true;
      cell.time = uint32_t(page.parts.size());
      page.parts.insert(page.parts.end(), kWord, copy);
    }
    const uint32_t first = cell.time, stop = std::min(end, offset / kWord * kWord + kWord);
    for (; offset < stop; ++offset)
      visit(page.parts[first + offset % kWord], address - address % kPageBytes + offset);
  }
}

template <class F>
void each_strong(const GridPage& page, uint64_t address, uint32_t bytes, F visit) {
  if (page.strong.empty()) return;
  for (uint32_t i = 0; i < bytes; ++i) {
    const auto found = page.strong.find(uint32_t(address % kPageBytes) + i);
    if (found != page.strong.end()) visit(found->second, address + i);
  }
}

// Whether a strong write and an access of this strength see one another as such.
bool in_scope(const Accessor& who, Strength strength, const WriteCell& strong) {
  if (strength == Strength::Weak) return false;
  return strong.block == who.block.index || (strength == Strength::Grid && !strong.of_block);
}

bool ordered_before(const Accessor& who, const WriteCell& cell) {
  if (cell.block == who.block.index)
    return cell.time <= who.floor || who.block.clocks.knows(who.thread(), cell.thread, cell.time);
  return who.block.clocks.knows_other_block(who.thread(), cell.block, cell.thread, cell.time);
}

std::string between(bool same_block) {
  return same_block ? " with no barrier or warp sync between"
                    : " with no write, fence, atomic on one side and atomic, fence, access on the other";
}

void report(const Accessor& who, const char* rule, const char* verb, uint64_t address, const WriteCell& cell) {
  const GridMemory& grid = *who.block.grid;
  finding(rule,
          std::string(verb) + " of the byte at " + hex_address(address) + ", written in this launch by " +
              describe(grid.site_of(cell.block, cell.thread, cell.site), cell.thread % 32) +
              between(cell.block == who.block.index),
          who.site, int(who.lane));
}

void add_masks(ByteMasks& masks, const std::vector<ReadRun>& runs) {
  for (const ReadRun& run : runs)
    for (uint32_t i = 0; i < run.count; ++i) masks[run.first + i] |= run.bytes;
}

bool covers(const std::vector<ReadRun>& runs, const ByteMasks& wanted) {
  ByteMasks masks{};
  add_masks(masks, runs);
  for (size_t i = 0; i < masks.size(); ++i)
    if (wanted[i] & ~masks[i]) return false;
  return true;
}

// Judges a page that was written and read in one launch.
class PageJudge {
 public:
  PageJudge(GridMemory& grid, uint64_t number, const GridPage& page)
      : grid_(grid), first_(number << kPageShift), page_(page) {}

  void judge() {
    for (const BlockReads& reads : page_.reads) {
      if (reads.exact) {
        judge_exact(reads);
      } else {
        judge_runs(reads);
      }
    }
  }

 private:
  template <class F>
  void each_written(uint32_t granule, uint16_t bytes, F visit) {
    for (; bytes; bytes &= uint16_t(bytes - 1)) {
      const uint32_t offset = (granule << kGranuleShift) + uint32_t(std::countr_zero(bytes));
      const WriteCell& word = page_.cells[offset / kWord];
      const WriteCell& cell = word.split ? page_.parts[word.time + offset % kWord] : word;
      if (cell.time) visit(first_ + offset, cell);
      if (page_.strong.empty()) continue;
      if (const auto found = page_.strong.find(offset); found != page_.strong.end())
        visit(first_ + offset, found->second);
    }
  }

  void judge_runs(const BlockReads& reads) {
    for (const ReadRun& run : reads.runs) {
      for (uint32_t i = 0; i < run.count; ++i) {
        each_written(run.first + i, run.bytes, [&](uint64_t address, const WriteCell& cell) {
          if (reads.read_only || reads.block != cell.block) report(reads, address, cell, 0, -1, run.site);
        });
      }
    }
  }

  void judge_exact(const BlockReads& reads) {
    for (uint32_t granule = 0; granule < kGranules; ++granule)
      judge_slot(reads, granule, reads.exact->slots[granule]);
    for (const auto& [granule, slot] : reads.exact->more) judge_slot(reads, granule, slot);
  }

  // A read and a write are in order if the reader knew of the write or the writer of the read.
  void judge_slot(const BlockReads& reads, uint32_t granule, const ReadSlot& slot) {
    each_written(granule, slot.bytes, [&](uint64_t address, const WriteCell& cell) {
      if (cell.block == reads.block) return;
      const ClockPtr reader = grid_.clocks.at(slot.clock), writer = grid_.clocks.at(cell.clock);
      if (reader && reader->time_of(cell.block, cell.thread) >= cell.time) return;
      for (uint32_t warps = slot.warps; warps; warps &= warps - 1) {
        const uint32_t first = uint32_t(std::countr_zero(warps)) * kLanes;
        bool all_known = writer != nullptr, any_known = false;
        int unknown = -1;
        for (uint32_t lanes = slot.lanes ? slot.lanes : ~0u; lanes && writer; lanes &= lanes - 1) {
          const int lane = std::countr_zero(lanes);
          const bool known = writer->time_of(reads.block, first + uint32_t(lane)) >= slot.time;
          if (!known) unknown = lane;
          all_known &= known;
          any_known |= known;
        }
        // Where lanes are not told apart, any that is known will do.
        if (slot.lanes ? all_known : any_known) continue;
        if (slot.lanes && unknown < 0) unknown = std::countr_zero(slot.lanes);
        return report(reads, address, cell, first, slot.lanes ? unknown : -1, slot.site);
      }
    });
  }

  void report(const BlockReads& reads, uint64_t address, const WriteCell& cell, uint32_t thread, int lane,
              uint16_t site) {
    const std::string writer = describe(grid_.site_of(cell.block, cell.thread, cell.site), cell.thread % kLanes);
    finding(reads.read_only ? "nc-written" : "global-race",
            (reads.read_only ? "read-only load of the byte at " : "read of the byte at ") + hex_address(address) +
                ", written in this launch by " + writer + (reads.read_only ? "" : between(false)),
            grid_.site_of(reads.block, thread, site), lane);
  }

  GridMemory& grid_;
  uint64_t first_;
  const GridPage& page_;
};

}  // namespace

GridPage& GlobalShadow::page_at(uint64_t page) {
  Shard& shard = shard_of(page);
  const std::lock_guard lock(shard.mutex);
  std::unique_ptr<GridPage>& at = shard.pages[page];
  if (!at) at = std::make_unique<GridPage>();
  return *at;
}

GridPage& GlobalShadow::page_at(GridPageCache& cache, uint64_t number) {
  auto& [cached, page] = cache.at[number % GridPageCache::kCached];
  if (cached != number) cached = number, page = &page_at(number);
  return *page;
}

void GlobalShadow::check_read(Accessor who, const SpaceLanes& lanes, uint32_t bytes, Strength strength,
                              bool read_only) {
  uint64_t number = 0;
  bool written = false;
  std::unique_lock<std::mutex> lock;
  GridPage* page = nullptr;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    who.lane = uint32_t(std::countr_zero(mask));
    const uint64_t address = lanes.address[who.lane];
    if (address >> kPageShift != number) {
      number = address >> kPageShift;
      written = may_be_written(number);
      if (written) [[unlikely]] {
        if (lock) lock.unlock();
        page = &page_at(who.block.pages, number);
        lock = std::unique_lock(page->mutex);
        written = !page->cells.empty();
      }
    }
    if (!written) [[likely]] continue;
    const auto judge = [&](const WriteCell& cell, uint64_t at) {
      if (!cell.time) return;
      if (read_only) {
        report(who, "nc-written", "read-only load", at, cell);
      } else if (!ordered_before(who, cell)) {
        report(who, "global-race", "read", at, cell);
      }
    };
    each_cell(*page, address, bytes, judge);
    each_strong(*page, address, bytes, [&](const WriteCell& cell, uint64_t at) {
      if (!in_scope(who, strength, cell)) judge(cell, at);
    });
  }
}

void GlobalShadow::write(Accessor who, const SpaceLanes& lanes, uint32_t bytes, Strength strength) {
  const bool strong = strength != Strength::Weak;
  const bool clocks = who.block.clocks.released_anything();
  uint64_t number = 0;
  std::unique_lock<std::mutex> lock;
  GridPage* page = nullptr;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    who.lane = uint32_t(std::countr_zero(mask));
    const uint64_t address = lanes.address[who.lane];
    if (address >> kPageShift != number) {
      number = address >> kPageShift;
      if (lock) lock.unlock();
      page = &page_at(who.block.pages, number);
      lock = std::unique_lock(page->mutex);
      if (page->cells.empty()) mark_written(number, *page);
    }
    const WriteCell mine{who.now,
                         who.block.index,
                         clocks ? who.block.known_clock(who.thread()) : 0,
                         uint16_t(who.thread()),
                         who.site_index,
                         false,
                         strength == Strength::Block};
    each_cell(*page, address, bytes, [&](WriteCell& cell, uint64_t at) {
      if (cell.time && !ordered_before(who, cell)) report(who, "global-race", "write", at, cell);
      if (!strong) cell = mine;
    });
    each_strong(*page, address, bytes, [&](const WriteCell& cell, uint64_t at) {
      if (!in_scope(who, strength, cell) && !ordered_before(who, cell)) report(who, "global-race", "write", at, cell);
    });
    for (uint32_t i = 0; i < bytes; ++i) {
      const uint32_t offset = uint32_t(address % kPageBytes) + i;
      if (strong) {
        page->strong[offset] = mine;
      } else if (!page->strong.empty()) {
        page->strong.erase(offset);
      }
    }
  }
}

void GlobalShadow::mark_written(uint64_t number, GridPage& page) {
  page.cells.resize(kWords);
  const uint64_t hash = filter_hash(number);
  filter_[hash / 64].fetch_or(1ull << hash % 64, std::memory_order_release);
}

void GlobalShadow::add_reads(uint32_t block, const GlobalReads& reads, bool synchronises) {
  for (const auto& [number, read] : reads.pages()) {
    GridPage& page = page_at(number);
    const std::lock_guard lock(page.mutex);
    if (read->cached) add_entry(page, {block, true, read->read_only_runs(), nullptr});
    if (!read->plain) continue;
    if (synchronises) {
      page.reads.push_back({block, false, {}, std::make_unique<ReadPage>(*read)});
    } else {
      add_entry(page, {block, false, read->plain_runs(), nullptr});
    }
  }
}

// One block that has read bytes through the read-only path, or two that order nothing and have read them: any write
// is a finding already, whoever else reads, so more need not be kept.
void GlobalShadow::add_entry(GridPage& page, BlockReads entry) {
  int enough = entry.read_only ? 1 : 2;
  ByteMasks masks{};
  add_masks(masks, entry.runs);
  for (const BlockReads& other : page.reads)
    if (!other.exact && other.read_only == entry.read_only && covers(other.runs, masks) && --enough == 0) return;
  page.reads.push_back(std::move(entry));
}

void GlobalShadow::finish(GridMemory& grid) {
  for (Shard& shard : shards_) {
    for (auto& [number, page] : shard.pages) {
      (page->cells.empty() ? grid.read : grid.written).push_back(number);
      if (!page->cells.empty() && !page->reads.empty()) PageJudge(grid, number, *page).judge();
    }
  }
  std::sort(grid.read.begin(), grid.read.end());
  std::sort(grid.written.begin(), grid.written.end());
}

}  // namespace soft
