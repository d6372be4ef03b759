// Notes reads and judges writes within a block. See the header.
#include "global_reads.hpp"

#include <bit>

#include "memory_block.hpp"

namespace soft {
namespace {

uint32_t granule_of(uint64_t address) { return uint32_t(address % kPageBytes) >> kGranuleShift; }

// The lanes of two reads at one time, if each of them has read all of the bytes of both.
uint32_t merged_lanes(const ReadSlot& a, const ReadSlot& b) {
  if (!a.lanes || !b.lanes || a.warps != b.warps) return 0;
  return a.bytes == b.bytes || a.lanes == b.lanes ? a.lanes | b.lanes : 0;
}

uint16_t mask_of(uint64_t address, uint32_t bytes) { return uint16_t(((1u << bytes) - 1) << (address & 15)); }

void append(std::vector<ReadRun>& runs, uint32_t granule, uint16_t bytes, uint16_t site) {
  if (!bytes) return;
  if (!runs.empty()) {
    ReadRun& last = runs.back();
    if (last.first + last.count == int(granule) && last.bytes == bytes && last.site == site) {
      ++last.count;
      return;
    }
  }
  runs.push_back({uint16_t(granule), 1, bytes, site});
}

}  // namespace

std::vector<ReadRun> ReadPage::plain_runs() const {
  std::vector<ReadRun> runs;
  for (uint32_t granule = 0; granule < kGranules; ++granule)
    append(runs, granule, slots[granule].bytes, slots[granule].site);
  for (const auto& [granule, slot] : more) append(runs, granule, slot.bytes, slot.site);
  return runs;
}

std::vector<ReadRun> ReadPage::read_only_runs() const {
  std::vector<ReadRun> runs;
  for (uint32_t granule = 0; granule < kGranules; ++granule)
    append(runs, granule, read_only[granule], read_only_sites[granule]);
  return runs;
}

void ReadPage::clear() {
  cached = plain = false;
  more.clear();
}

void GlobalReads::reset() {
  for (auto& [page, reads] : pages_)
    if (spare_.size() < kSpare) spare_.push_back(std::move(reads));
  pages_.clear();
  std::fill(std::begin(cache_), std::end(cache_), std::pair<uint64_t, ReadPage*>());
}

ReadPage& GlobalReads::page_of(uint64_t number) {
  auto& [cached, page] = cache_[number % kCached];
  if (cached == number) return *page;
  std::unique_ptr<ReadPage>& reads = pages_[number];
  if (!reads) {
    if (spare_.empty()) {
      reads = std::make_unique_for_overwrite<ReadPage>();
    } else {
      reads = std::move(spare_.back());
      spare_.pop_back();
    }
    reads->clear();
  }
  cached = number;
  page = reads.get();
  return *page;
}

const ReadPage* GlobalReads::find(uint64_t number) const {
  if (const auto& [cached, page] = cache_[number % kCached]; cached == number) return page;
  const auto found = pages_.find(number);
  return found == pages_.end() ? nullptr : found->second.get();
}

void GlobalReads::note_read_only(Accessor who, const SpaceLanes& lanes, uint32_t bytes) {
  uint64_t number = 0;
  ReadPage* page = nullptr;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const uint64_t address = lanes.address[std::countr_zero(mask)];
    if (address >> kPageShift != number) {
      number = address >> kPageShift;
      page = &page_of(number);
      if (!page->cached) page->read_only.fill(0);
      page->cached = true;
    }
    page->read_only[granule_of(address)] |= mask_of(address, bytes);
    page->read_only_sites[granule_of(address)] = who.site_index;
  }
}

void GlobalReads::note(Accessor who, const SpaceLanes& lanes, uint32_t bytes) {
  const bool clocks = who.block.clocks.released_anything();
  const uint32_t warp = 1u << who.warp;
  uint64_t number = 0;
  ReadPage* page = nullptr;
  for (uint32_t left = lanes.mask; left; left &= left - 1) {
    who.lane = uint32_t(std::countr_zero(left));
    const uint64_t address = lanes.address[who.lane];
    if (address >> kPageShift != number) {
      number = address >> kPageShift;
      page = &page_of(number);
      if (!page->plain) page->slots.fill(ReadSlot());
      page->plain = true;
    }
    ReadSlot& slot = page->slots[granule_of(address)];
    const uint16_t mask = mask_of(address, bytes);
    const uint32_t clock = clocks ? who.block.known_clock(who.thread()) : 0;
    const ReadSlot fresh{who.now, warp, clock, who.bit(), mask, who.site_index};
    if (slot.bytes == 0 || (slot.time <= who.floor && !(slot.bytes & ~mask))) {
      slot = fresh;
    } else if (slot.time == who.now && slot.clock == clock && slot.site == who.site_index &&
               (slot.warps == warp || slot.bytes == mask)) {
      slot.lanes = merged_lanes(slot, fresh);
      slot.bytes |= mask;
      slot.warps |= warp;
    } else if (slot.warps == warp && slot.lanes == who.bit() && !(slot.bytes & ~mask)) {
      slot = fresh;
    } else {
      note_more(*page, granule_of(address), fresh);
    }
  }
}

void GlobalReads::note_more(ReadPage& page, uint32_t granule, const ReadSlot& fresh) {
  for (auto& [at, slot] : page.more) {
    if (at != granule || slot.bytes != fresh.bytes || slot.warps != fresh.warps) continue;
    const uint32_t lanes = slot.lanes == fresh.lanes || slot.time == fresh.time ? merged_lanes(slot, fresh) : 0;
    slot = fresh;
    slot.lanes = lanes;
    return;
  }
  page.more.emplace_back(granule, fresh);
}

// Whether the slot's reader is not ordered before the accessor; `thread`: one of it.
bool GlobalReads::unordered(const Accessor& who, const ReadSlot& slot, uint32_t& thread) const {
  const BlockClocks& clocks = who.block.clocks;
  if (slot.time <= who.floor) return false;
  for (uint32_t warps = slot.warps; warps; warps &= warps - 1) {
    const uint32_t warp = uint32_t(std::countr_zero(warps));
    if (!slot.lanes && warp == who.warp) continue;  // which of the accessor's own lanes is not known
    bool all_known = true, any_known = false;
    for (uint32_t lanes = slot.lanes ? slot.lanes : clocks.born(warp); lanes; lanes &= lanes - 1) {
      const uint32_t reader = warp * kLanes + uint32_t(std::countr_zero(lanes));
      const bool known = clocks.knows(who.thread(), reader, slot.time);
      if (!known) thread = reader;
      all_known &= known;
      any_known |= known;
    }
    if (slot.lanes ? !all_known : !any_known) return true;
  }
  return false;
}

void GlobalReads::check_write(Accessor who, const SpaceLanes& lanes, uint32_t bytes) {
  if (pages_.empty()) return;
  uint64_t number = 0;
  const ReadPage* page = nullptr;
  for (uint32_t left = lanes.mask; left; left &= left - 1) {
    who.lane = uint32_t(std::countr_zero(left));
    const uint64_t address = lanes.address[who.lane];
    if (address >> kPageShift != number) page = find(number = address >> kPageShift);
    if (!page || !page->plain) continue;
    const uint32_t granule = granule_of(address);
    const uint16_t mask = mask_of(address, bytes);
    const auto judge = [&](const ReadSlot& slot) {
      uint32_t thread = 0;
      if (!(slot.bytes & mask) || !unordered(who, slot, thread)) return;
      const Site reader = who.block.grid->site_of(who.block.index, thread, slot.site);
      finding("global-race",
              "write of " + std::to_string(bytes) + " bytes at " + hex_address(address) + ", read by " +
                  describe(reader, int(thread % 32)) + " with no barrier or warp sync between",
              who.site, int(who.lane));
    };
    judge(page->slots[granule]);
    for (const auto& [at, slot] : page->more)
      if (at == granule) judge(slot);
  }
}

}  // namespace soft
