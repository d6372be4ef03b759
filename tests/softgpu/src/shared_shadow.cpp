// The rules of shared memory. See the header for what a cell keeps.
#include "shared_shadow.hpp"

#include <algorithm>
#include <bit>

#include "memory_block.hpp"

namespace soft {
namespace {

constexpr uint32_t kWord = 4;

}  // namespace

void SharedShadow::reset(uint32_t bytes) {
  cells_.assign((bytes + kWord - 1) / kWord, Cell());
  parts_.clear();
  free_parts_.clear();
  for (auto& list : lists_) list.clear();
  free_lists_.clear();
  for (uint32_t i = 0; i < lists_.size(); ++i) free_lists_.push_back(i);
}

template <class F>
inline void SharedShadow::each_cell(uint32_t offset, uint32_t bytes, F visit) {
  const uint32_t end = offset + bytes;
  while (offset < end) {
    Cell& cell = cells_[offset / kWord];
    const bool whole = offset % kWord == 0 && end - offset >= kWord;
    if (whole && !(cell.flags & kSplit)) [[likely]] {
      visit(cell, offset);
      offset += kWord;
      continue;
    }
    if (!(cell.flags & kSplit)) split(cell);
    const uint32_t stop = std::min(end, offset / kWord * kWord + kWord);
    for (; offset < stop; ++offset) visit(parts_[cell.readers + offset % kWord], offset);
    if (whole) unsplit(cell);
  }
}

void SharedShadow::split(Cell& cell) {
  uint32_t at;
  if (free_parts_.empty()) {
    at = uint32_t(parts_.size());
    parts_.resize(parts_.size() + kWord);
  } else {
    at = free_parts_.back();
    free_parts_.pop_back();
  }
  const bool listed = cell.flags & kList;
  if (listed) readers_of(cell, scratch_);
  for (uint32_t i = 0; i < kWord; ++i) {
    Cell& part = parts_[at + i];
    part = cell;
    if (!listed || i == 0) continue;
    if (free_lists_.empty()) {
      free_lists_.push_back(uint32_t(lists_.size()));
      lists_.emplace_back();
    }
    part.readers = free_lists_.back();
    free_lists_.pop_back();
    lists_[part.readers] = scratch_;
  }
  cell = Cell();
  cell.flags = kSplit;
  cell.readers = at;
}

// Once the parts tell the same, one cell tells it as well.
void SharedShadow::unsplit(Cell& cell) {
  const uint32_t at = cell.readers;
  const Cell& first = parts_[at];
  if (first.flags & kList) return;
  for (uint32_t i = 1; i < kWord; ++i)
    if (first != parts_[at + i]) return;
  free_parts_.push_back(at);
  cell = first;
}

void SharedShadow::read(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) { read_cell(who, cell, byte); });
}

void SharedShadow::write(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) { write_cell(who, cell, byte, 0); });
}

inline void SharedShadow::read_cell(const Accessor& who, Cell& cell, uint32_t byte) {
  if (cell.write_time == 0 || (cell.write_time > who.floor && cell.writer != who.thread()) ||
      cell.flags & (kInFlight | kStrongReads)) [[unlikely]] {
    check_written(who, cell, byte, "read");
    if (cell.flags & kStrongReads) settle_strong(cell);
  }
  note_read(who, cell);
}

inline void SharedShadow::note_read(const Accessor& who, Cell& cell) {
  if (cell.read_time == who.now && cell.read_warp == who.warp) {  // never a list: that is kManyWarps
    cell.readers |= who.bit();
    cell.read_site = who.site_index;
  } else if (cell.read_time <= who.floor && !(cell.flags & kList)) {
    cell.read_time = who.now;
    cell.readers = who.bit();
    cell.read_warp = uint16_t(who.warp);
    cell.read_site = who.site_index;
  } else {
    note_concurrent_read(who, cell);
  }
}

void SharedShadow::check_written(const Accessor& who, const Cell& cell, uint32_t byte, const char* verb) {
  if (cell.flags & kInFlight) {
    report(who, "async-unsynchronised", verb, byte, "still being copied by", cell.writer, cell.write_site);
  } else if (cell.write_time == 0 && !(cell.flags & kWritten)) {
    finding("shared-uninitialised",
            std::string(verb) + " of shared byte " + hex_address(byte) + ", which no thread of the block has written",
            who.site, int(who.lane));
  } else if (cell.write_time && !who.block.clocks.knows(who.thread(), cell.writer, cell.write_time)) {
    const bool landed = cell.flags & kLanded;
    report(who, landed ? "async-unsynchronised" : "shared-race", verb, byte,
           landed ? "copied, and since not passed on by a barrier, by" : "written by", cell.writer, cell.write_site);
  }
  if (!(cell.flags & kStrongReads)) return;
  if (const Reader* other = concurrent_reader(who, cell))
    report(who, "shared-race", verb, byte, "updated by", other->warp * 32u + uint32_t(unknown_lane(who, *other)),
           other->site);
}

void SharedShadow::note_concurrent_read(const Accessor& who, Cell& cell) {
  const bool whole_warps = who.block.clocks.whole_warps();
  if (whole_warps && cell.read_time == who.now && cell.read_warp == kManyWarps && !(cell.flags & kList)) {
    cell.readers |= 1u << who.warp;
    cell.read_site = who.site_index;
    return;
  }
  readers_of(cell, scratch_);
  std::erase_if(scratch_, [&](const Reader& reader) {
    return !(reader.time == who.now && reader.warp == who.warp) && unknown_lane(who, reader) < 0;
  });
  bool added = false, same_time = true;
  for (Reader& reader : scratch_) {
    if (reader.warp == who.warp && reader.time == who.now) reader.lanes |= who.bit(), added = true;
    same_time &= reader.time == who.now;
  }
  if (!added) scratch_.push_back({who.now, who.bit(), uint16_t(who.warp), who.site_index});
  const uint16_t strong = cell.flags & kStrongReads;
  forget_readers(cell);
  cell.flags |= strong;
  cell.read_site = who.site_index;
  if (scratch_.size() == 1) {
    const Reader& only = scratch_[0];
    cell.read_time = only.time, cell.readers = only.lanes, cell.read_warp = only.warp;
  } else if (same_time && whole_warps) {
    // Lanes need not be kept: until the next event any other warp is unordered, and after it whole warps are ordered.
    cell.read_time = who.now, cell.readers = 0, cell.read_warp = kManyWarps;
    for (const Reader& reader : scratch_) cell.readers |= 1u << reader.warp;
  } else {
    if (free_lists_.empty()) {
      free_lists_.push_back(uint32_t(lists_.size()));
      lists_.emplace_back();
    }
    cell.readers = free_lists_.back();
    free_lists_.pop_back();
    lists_[cell.readers] = scratch_;
    cell.flags |= kList;
    cell.read_time = who.now;
    cell.read_warp = kManyWarps;
  }
}

void SharedShadow::readers_of(const Cell& cell, std::vector<Reader>& out) const {
  out.clear();
  if (cell.flags & kList) {
    out = lists_[cell.readers];
  } else if (cell.read_time && cell.read_warp == kManyWarps) {
    for (uint32_t warps = cell.readers; warps; warps &= warps - 1)
      out.push_back({cell.read_time, ~0u, uint16_t(std::countr_zero(warps)), cell.read_site});
  } else if (cell.read_time) {
    out.push_back({cell.read_time, cell.readers, cell.read_warp, cell.read_site});
  }
}

void SharedShadow::forget_readers(Cell& cell) {
  if (cell.flags & kList) {
    lists_[cell.readers].clear();
    free_lists_.push_back(cell.readers);
  }
  cell.flags &= uint16_t(~(kList | kStrongReads));
  cell.read_time = cell.readers = 0;
  cell.read_warp = cell.read_site = 0;
}

// A lane of `reader`, other than the accessor, whose access the accessor does not know of; -1: it knows all.
int SharedShadow::unknown_lane(const Accessor& who, const Reader& reader) const {
  if (reader.time <= who.floor) return -1;
  const BlockClocks& clocks = who.block.clocks;
  uint32_t lanes = reader.lanes & clocks.born(reader.warp);
  if (reader.warp == who.warp) lanes &= ~who.bit();
  for (; lanes; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    if (!clocks.knows(who.thread(), reader.warp * 32u + uint32_t(lane), reader.time)) return lane;
  }
  return -1;
}

const SharedShadow::Reader* SharedShadow::concurrent_reader(const Accessor& who, const Cell& cell) {
  readers_of(cell, scratch_);
  for (const Reader& reader : scratch_)
    if (unknown_lane(who, reader) >= 0) return &reader;
  return nullptr;
}

void SharedShadow::check_write(const Accessor& who, const Cell& cell, uint32_t byte, const char* verb) {
  if (cell.flags & kInFlight) {
    report(who, "async-unsynchronised", verb, byte, "still being copied by", cell.writer, cell.write_site);
  } else if (!who.block.clocks.knows(who.thread(), cell.writer, cell.write_time)) {
    const bool landed = cell.flags & kLanded;
    report(who, landed ? "async-unsynchronised" : "shared-race", verb, byte,
           landed ? "copied, and since not passed on by a barrier, by" : "written by", cell.writer, cell.write_site);
  }
}

inline void SharedShadow::write_cell(const Accessor& who, Cell& cell, uint32_t byte, uint16_t flags) {
  const bool copy = flags & kInFlight;
  const char* verb = copy ? "copy" : "write";
  if ((cell.write_time > who.floor && cell.writer != who.thread()) || cell.flags & kInFlight) [[unlikely]]
    check_write(who, cell, byte, verb);
  if (cell.read_time > who.floor || cell.flags & kList) {
    if (const Reader* other = concurrent_reader(who, cell))
      report(who, copy ? "async-overwrites-read" : "shared-race", verb, byte,
             cell.flags & kStrongReads ? "updated by" : "read by",
             other->warp * 32u + uint32_t(unknown_lane(who, *other)), other->site);
  }
  forget_readers(cell);
  cell.write_time = who.now;
  cell.writer = uint16_t(who.thread());
  cell.write_site = who.site_index;
  cell.flags = flags;
}

// The strong accesses so far are about to give way to weak reads: the last of them stands for them as the write.
void SharedShadow::settle_strong(Cell& cell) {
  readers_of(cell, scratch_);
  for (const Reader& reader : scratch_) {
    if (reader.time < cell.write_time) continue;
    cell.write_time = reader.time;
    cell.writer = uint16_t(reader.warp * 32 + uint32_t(std::countr_zero(reader.lanes)));
    cell.write_site = reader.site;
    cell.flags &= uint16_t(~kLanded);
  }
  forget_readers(cell);
}

void SharedShadow::require_written(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) {
    if (!cell.write_time && !(cell.flags & kWritten)) check_written(who, cell, byte, "update");
  });
}

void SharedShadow::read_row(Accessor who, uint32_t offset, const uint8_t* lanes) {
  for (uint32_t i = 0; i < 4; ++i) {
    who.lane = lanes[i];
    read(who, offset + i * kWord, kWord);
  }
}

void SharedShadow::write_row(Accessor who, uint32_t offset, const uint8_t* lanes) {
  for (uint32_t i = 0; i < 4; ++i) {
    who.lane = lanes[i];
    write(who, offset + i * kWord, kWord);
  }
}

void SharedShadow::strong_write(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) {
    if (cell.write_time || cell.flags & kInFlight) check_write(who, cell, byte, "update");
    if (!(cell.flags & kStrongReads)) {
      if (const Reader* other = concurrent_reader(who, cell))
        report(who, "shared-race", "update", byte, "read by",
               other->warp * 32u + uint32_t(unknown_lane(who, *other)), other->site);
      forget_readers(cell);
    }
    cell.flags = uint16_t((cell.flags & ~kInFlight) | kStrongReads | kWritten);
    note_read(who, cell);
  });
}

void SharedShadow::strong_read(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) {
    const uint16_t strong = cell.flags & kStrongReads;
    cell.flags &= uint16_t(~kStrongReads);
    check_written(who, cell, byte, "read");
    cell.flags |= strong;
    note_read(who, cell);
  });
}

void SharedShadow::copy_issued(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t byte) { write_cell(who, cell, byte, kInFlight); });
}

void SharedShadow::copy_landed(const Accessor& who, uint32_t offset, uint32_t bytes) {
  each_cell(offset, bytes, [&](Cell& cell, uint32_t) {
    if (!(cell.flags & kInFlight) || cell.writer != who.thread()) return;
    cell.flags = uint16_t((cell.flags & ~kInFlight) | kLanded);
    cell.write_time = who.now;
  });
}

void SharedShadow::report(const Accessor& who, const char* rule, const char* verb, uint32_t byte,
                          const char* other_verb, uint32_t other_thread, uint16_t other_site) const {
  const Site other = who.block.grid->site_of(who.block.index, other_thread, other_site);
  finding(rule,
          std::string(verb) + " of shared byte " + hex_address(byte) + ", " + other_verb + " " +
              describe(other, int(other_thread % 32)),
          who.site, int(who.lane));
}

}  // namespace soft
