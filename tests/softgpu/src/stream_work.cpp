// How each kind of work is checked, described and carried out.
#include "stream_work.hpp"

#include <algorithm>
#include <cstring>

#include "config.hpp"
#include "counters.hpp"
#include "driver.hpp"
#include "findings.hpp"
#include "memory_arena.hpp"

namespace soft {
namespace {

template <class... Visitors>
struct Overload : Visitors... {
  using Visitors::operator()...;
};

uint64_t extent(const Place& place, uint64_t width, uint64_t rows) {
  return width == 0 || rows == 0 ? 0 : (rows - 1) * place.pitch + width;
}

uint64_t hash_bytes(const uint8_t* bytes, uint64_t count, uint64_t hash) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; count > 0; bytes++, count--) hash = (hash ^ *bytes) * kPrime;
  return hash;
}

uint64_t hash_source(const CopyWork& copy) {
  uint64_t hash = 1;
  for (uint64_t row = 0; row < copy.rows; row++) {
    hash = hash_bytes(reinterpret_cast<const uint8_t*>(copy.from.address + row * copy.from.pitch), copy.width, hash);
  }
  return hash;
}

void check_place(const Place& place, uint64_t width, uint64_t rows) {
  require(rows <= 1 || place.pitch >= width, kInvalidValue);
  if (place.host) {
    require(place.address != 0, kInvalidValue);
  } else {
    require(device_range(place.address, extent(place, width, rows)), kInvalidValue);
  }
}

void copy_row(const CopyWork& copy, uint64_t row) {
  const uint64_t to = copy.to.address + row * copy.to.pitch;
  const uint64_t from = copy.from.address + row * copy.from.pitch;
  const void* source = copy.staged.empty() ? reinterpret_cast<const void*>(from) : &copy.staged[row * copy.width];
  bool whole = true;
  if (copy.to.host && copy.from.host) {
    std::memmove(reinterpret_cast<void*>(to), source, copy.width);
  } else if (copy.to.host) {
    whole = read_device(from, reinterpret_cast<void*>(to), copy.width);
  } else if (copy.from.host) {
    whole = write_device(to, source, copy.width);
  } else {
    whole = copy_device(to, from, copy.width);
  }
  if (!whole) {
    finding("copy-out-of-bounds", "memory was gone when the copy ran", describe(Work(copy)));
    throw Fault{700, "copy from or to memory that is not allocated"};
  }
}

void carry_out_copy(const CopyWork& copy, const std::string& origin) {
  if (copy.hashed && hash_source(copy) != copy.source_hash) {
    finding("source-changed", "the host source changed between the call and the copy's turn",
            origin + ": " + describe(Work(copy)));
  }
  if (copy.dropped) return;
  for (uint64_t row = 0; row < copy.rows; row++) copy_row(copy, row);
}

void carry_out_fill(const FillWork& fill) {
  for (uint64_t row = 0; row < fill.rows; row++) {
    if (!fill_device(fill.to + row * fill.pitch, fill.value, fill.element_bytes, fill.width)) {
      finding("fill-out-of-bounds", "memory was gone when the fill ran", describe(Work(fill)));
      throw Fault{700, "fill of memory that is not allocated"};
    }
  }
}

Footprint carry_out_kernel(const KernelWork& work, uint64_t launch) {
  Launch grid{work.function->kernel, work.function->device, {}, {}, work.shared_bytes, work.parameters, launch};
  std::memcpy(grid.grid, work.grid, sizeof grid.grid);
  std::memcpy(grid.block, work.block, sizeof grid.block);
  return run(grid);
}

// Any aligned word of the parameters that is an address of ours, a struct's members included.
std::vector<uint64_t> pointers(const KernelWork& kernel) {
  std::vector<uint64_t> found;
  for (size_t at = 0; at + 8 <= kernel.parameters.size(); at += 8) {
    uint64_t value;
    std::memcpy(&value, &kernel.parameters[at], 8);
    if (in_device_memory(value)) found.push_back(value);
  }
  return found;
}
}  // namespace

std::vector<Range> ranges(const Work& work) {
  std::vector<Range> touched;
  std::visit(
      Overload{
          [](const EmptyWork&) {},
          [](const HostWork&) {},
          [&](const FreeWork& free) { touched.push_back({free.base, 1, false, true}); },
          [&](const CopyWork& copy) {
            touched.push_back({copy.to.address, extent(copy.to, copy.width, copy.rows), copy.to.host, true});
            if (copy.staged.empty()) {
              touched.push_back({copy.from.address, extent(copy.from, copy.width, copy.rows), copy.from.host, false});
            }
          },
          [&](const FillWork& fill) {
            const uint64_t width = fill.width * fill.element_bytes;
            touched.push_back({fill.to, extent({fill.to, fill.pitch}, width, fill.rows), false, true});
          },
          [&](const KernelWork& kernel) {
            for (const uint64_t pointer : pointers(kernel)) {
              uint64_t base;
              const DeviceBlock* block = find_block(pointer, &base);
              if (block != nullptr) touched.push_back({base, block->bytes, false, true});
            }
          },
      },
      work);
  return touched;
}

bool uses(const Work& work, const Range& memory) {
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    const auto given = pointers(*kernel);
    return std::any_of(given.begin(), given.end(),
                       [&](uint64_t pointer) { return pointer - memory.address < memory.bytes; });
  }
  const auto touched = ranges(work);
  return std::any_of(touched.begin(), touched.end(), [&](const Range& range) {
    return range.host == memory.host && range.address < memory.address + memory.bytes &&
           memory.address < range.address + range.bytes;
  });
}

std::string describe(const Work& work) {
  return std::visit(Overload{
                        [](const EmptyWork&) { return std::string("nothing"); },
                        [](const HostWork&) { return std::string("host function"); },
                        [](const FreeWork& free) { return "free of " + hex_address(free.base); },
                        [](const KernelWork& kernel) { return "kernel " + kernel.function->kernel->name; },
                        [](const CopyWork& copy) {
                          const auto end = [](const Place& place) {
                            return std::string(!place.host    ? "device "
                                               : place.pinned ? "pinned "
                                                              : "pageable ") +
                                   hex_address(place.address);
                          };
                          return "copy of " + std::to_string(copy.width * copy.rows) + " bytes from " +
                                 end(copy.from) + " to " + end(copy.to);
                        },
                        [](const FillWork& fill) {
                          return "fill of " + std::to_string(fill.width * fill.rows * fill.element_bytes) +
                                 " bytes at " + hex_address(fill.to);
                        },
                    },
                    work);
}

void check(const CopyWork& copy) {
  if (copy.width == 0 || copy.rows == 0) return;
  check_place(copy.to, copy.width, copy.rows);
  check_place(copy.from, copy.width, copy.rows);
}

void check(const FillWork& fill) {
  if (fill.width == 0 || fill.rows == 0) return;
  require(fill.to % fill.element_bytes == 0 && fill.width <= UINT64_MAX / fill.element_bytes, kInvalidValue);
  check_place({fill.to, fill.pitch}, fill.width * fill.element_bytes, fill.rows);
}

void note_source(CopyWork& copy) {
  copy.source_hash = hash_source(copy);
  copy.hashed = true;
}

void stage(CopyWork& copy) {
  copy.staged.resize(copy.width * copy.rows);
  for (uint64_t row = 0; row < copy.rows; row++) {
    const void* from = reinterpret_cast<const void*>(copy.from.address + row * copy.from.pitch);
    std::memcpy(&copy.staged[row * copy.width], from, copy.width);
  }
}

void count(const Work& work) {
  DriverCounters& counters = driver_counters();
  if (std::holds_alternative<FillWork>(work)) counters.memsets++;
  const auto* copy = std::get_if<CopyWork>(&work);
  if (copy == nullptr) return;
  const uint64_t bytes = copy->width * copy->rows;
  (copy->to.host ? counters.d2h_bytes : copy->from.host ? counters.h2d_bytes : counters.d2d_bytes) += bytes;
  if (copy->holds_up) return;
  if (copy->to.host) counters.d2h_async_bytes += bytes;
  if (!copy->to.host && copy->from.host) counters.h2d_async_bytes += bytes;
}

void poison_target(const CopyWork& copy) {
  for (uint64_t row = 0; row < copy.rows; row++) {
    std::memset(reinterpret_cast<void*>(copy.to.address + row * copy.to.pitch), 0xff, copy.width);
  }
}

Footprint carry_out(const Work& work, uint64_t launch, const std::string& origin) {
  if (const auto* kernel = std::get_if<KernelWork>(&work)) return carry_out_kernel(*kernel, launch);
  if (const auto* copy = std::get_if<CopyWork>(&work)) carry_out_copy(*copy, origin);
  if (const auto* fill = std::get_if<FillWork>(&work)) carry_out_fill(*fill);
  return {};
}
}  // namespace soft
