// Loads, stores and atomics on global memory: bounds, alignment, what they cost, what they order, and the rules of
// the launch on the way.
#include <bit>
#include <cstring>

#include "memory_atomics.hpp"
#include "memory_block.hpp"
#include "memory_overlap.hpp"

namespace soft {
namespace {

// Strong accesses to one address happen one after another, each together with what it publishes or observes.
std::mutex& order_of(uint64_t address) {
  static std::mutex stripes[64];
  return stripes[(address >> 3) % 64];
}

bool acquires(Order order) { return order == Order::Acquire || order == Order::AcqRel || order == Order::SeqCst; }
bool releases(Order order) { return order == Order::Release || order == Order::AcqRel || order == Order::SeqCst; }

Strength strength_of(const Request& request) {
  if (request.order == Order::Weak) return Strength::Weak;
  return request.scope == Scope::Cta ? Strength::Block : Strength::Grid;
}

// The host bytes of each lane, all of them checked.
struct Places {
  uint8_t* at[kLanes];
  uint32_t dropped = 0;  // lanes whose write to a peer the card loses
};

// Checks one lane by itself: faults, or lets a peer pass.
void check_lane(const Request& request, int lane, uint64_t address, uint32_t bytes, uint32_t alignment,
                Places& places) {
  BlockMemory& block = request.block;
  if (address & (alignment - 1))
    fault(716, "misaligned", std::to_string(alignment) + "-byte access at " + hex_address(address), request.site,
          lane);
  const Window* window = block.window(address, bytes);
  if (!window) {
    const Misplaced misplaced = explain_misplaced(address, bytes);
    fault(700, misplaced.rule, misplaced.what, request.site, lane);
  }
  const int device = block.grid->shape.device;
  if (window->device == device) return;
  if (!peer_access_enabled(device, window->device))
    fault(700, "peer-access",
          hex_address(address) + " is memory of device " + std::to_string(window->device) +
              ", which device " + std::to_string(device) + " has not been given access to",
          request.site, lane);
  if (config().peer_writes_dropped) places.dropped |= 1u << lane;
}

// `widths`: bytes of each lane where they differ (0: the lane touches nothing), else all have request.bytes.
Places check(const Request& request, const SpaceLanes& lanes, uint32_t bytes, const uint32_t* widths = nullptr) {
  BlockMemory& block = request.block;
  Places places;
  uint64_t low = ~0ull, high = 0, bits = 0;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const uint64_t address = lanes.address[std::countr_zero(mask)];
    low = std::min(low, address);
    high = std::max(high, address);
    bits |= address;
  }
  const Window* window = bits & (bytes - 1) || high < low ? nullptr : block.window(low, high - low + bytes);
  if (!window || window->device != block.grid->shape.device) [[unlikely]] {
    for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      check_lane(request, lane, lanes.address[lane], widths ? widths[lane] : bytes, bytes, places);
    }
  }
  uint64_t number = 0;
  uint8_t* page = nullptr;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint64_t address = lanes.address[lane];
    if (address >> kPageShift != number) {
      number = address >> kPageShift;
      page = host_bytes(number << kPageShift, 1);
    }
    places.at[lane] = page + address % kPageBytes;
  }
  return places;
}

void count(const Request& request, const SpaceLanes& lanes, uint32_t bytes, AccessCount& kind) {
  const AccessCount cost = count_sectors(lanes.mask, lanes.address, bytes);
  kind += cost;
  request.block.at_site(request.block.site_index(request.site.instruction)) += cost;
}

// What a strong read or write of `who` at `address` orders across blocks. Called with order_of(address) held.
void order(const Accessor& who, const Request& request, uint64_t address, bool reads, bool writes) {
  GridMemory& grid = *who.block.grid;
  if (request.scope == Scope::Cta) return;
  BlockClocks& clocks = who.block.clocks;
  if (reads) clocks.observe(who.thread(), grid.publications.read(address), acquires(request.order));
  if (writes) {
    const ClockPtr clock = releases(request.order) ? clocks.release(who.thread()) : clocks.fenced(who.thread());
    grid.publications.publish(address, clock, reads);
  }
}

// With order_of(address) held, so that the shadow has strong writes in the order in which they happen.
void note_strong_write(const Accessor& who, const Request& request, uint64_t address, uint32_t bytes) {
  GridMemory& grid = *who.block.grid;
  uint64_t addresses[kLanes];
  addresses[who.lane] = address;
  if (grid.checks) grid.shadow.write(who, {who.bit(), addresses}, bytes, strength_of(request));
}

void strong_load(const Request& request, Accessor& who, uint64_t address, const uint8_t* at, uint8_t* out) {
  BlockMemory& block = request.block;
  const std::lock_guard lock(order_of(address));
  if (block.grid->adversarial) {
    block.cache.bypass(address, request.bytes);
    if (acquires(request.order)) block.cache.drop();
  }
  copy_lane(out, at, request.bytes);
  if (block.grid->checks) order(who, request, address, true, false);
}

void strong_store(const Request& request, Accessor& who, uint64_t address, uint8_t* at, const uint8_t* from) {
  BlockMemory& block = request.block;
  const std::lock_guard lock(order_of(address));
  if (block.grid->adversarial) {
    if (releases(request.order)) block.cache.drain();
    block.cache.bypass(address, request.bytes);
  }
  note_strong_write(who, request, address, request.bytes);
  copy_lane(at, from, request.bytes);
  if (block.grid->checks) order(who, request, address, false, true);
}

}  // namespace

void global_load(const Request& request, const SpaceLanes& lanes, uint8_t* out) {
  BlockMemory& block = request.block;
  GridMemory& grid = *block.grid;
  const uint32_t bytes = request.bytes;
  const bool strong = request.order != Order::Weak;
  const Places places = check(request, lanes, bytes);
  Accessor who = block.accessor(request.site, request.warp, 0);
  if (grid.checks) {
    grid.shadow.check_read(who, lanes, bytes, strength_of(request), request.read_only);
    if (request.read_only) {
      block.reads.note_read_only(who, lanes, bytes);
    } else if (!strong) {
      block.reads.note(who, lanes, bytes);
    }
  }
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    who.lane = uint32_t(std::countr_zero(mask));
    uint8_t* to = out + size_t(who.lane) * bytes;
    if (strong) {
      strong_load(request, who, lanes.address[who.lane], places.at[who.lane], to);
    } else if (grid.adversarial) {
      block.cache.read(lanes.address[who.lane], bytes, to);
    } else {
      copy_lane(to, places.at[who.lane], bytes);
    }
  }
  count(request, lanes, bytes, block.counters->global_load);
}

void global_store(const Request& request, const SpaceLanes& lanes, const uint8_t* from) {
  BlockMemory& block = request.block;
  GridMemory& grid = *block.grid;
  const uint32_t bytes = request.bytes;
  const bool strong = request.order != Order::Weak;
  const Places places = check(request, lanes, bytes);
  Accessor who = block.accessor(request.site, request.warp, 0);
  if (grid.checks) {
    uint32_t differing;
    const uint32_t overlapping = overlapping_lanes(lanes.mask, lanes.address, bytes, from, differing);
    if (differing && !strong) {
      const int lane = std::countr_zero(differing);
      finding("global-race",
              "two lanes of one store write different values to " + hex_address(lanes.address[lane]), request.site,
              lane);
    }
    const SpaceLanes distinct{lanes.mask & ~overlapping, lanes.address};
    block.reads.check_write(who, distinct, bytes);
    if (!strong) grid.shadow.write(who, distinct, bytes, Strength::Weak);
  }
  for (uint32_t mask = lanes.mask & ~places.dropped; mask; mask &= mask - 1) {
    who.lane = uint32_t(std::countr_zero(mask));
    const uint8_t* value = from + size_t(who.lane) * bytes;
    if (strong) {
      strong_store(request, who, lanes.address[who.lane], places.at[who.lane], value);
    } else if (grid.adversarial) {
      block.cache.write(lanes.address[who.lane], bytes, value);
    } else {
      copy_lane(places.at[who.lane], value, bytes);
    }
  }
  count(request, lanes, bytes, block.counters->global_store);
}

void global_atomic(const Request& request, const SpaceLanes& lanes, AtomicOp op, AtomicType type, const uint8_t* a,
                   const uint8_t* b, uint8_t* out) {
  BlockMemory& block = request.block;
  GridMemory& grid = *block.grid;
  const uint32_t bytes = width_of(type);
  const Places places = check(request, lanes, bytes);
  Accessor who = block.accessor(request.site, request.warp, 0);
  if (grid.checks) block.reads.check_write(who, lanes, bytes);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    who.lane = uint32_t(std::countr_zero(mask));
    const uint64_t address = lanes.address[who.lane];
    const std::lock_guard lock(order_of(address));
    if (grid.adversarial) {
      if (releases(request.order)) block.cache.drain();
      block.cache.bypass(address, bytes);
      if (acquires(request.order)) block.cache.drop();
    }
    const size_t at = size_t(who.lane) * bytes;
    note_strong_write(who, request, address, bytes);
    uint8_t lost[8];
    uint8_t* target = places.at[who.lane];
    if (places.dropped >> who.lane & 1) target = static_cast<uint8_t*>(std::memcpy(lost, target, bytes));
    apply_atomic(op, type, target, a + at, b ? b + at : nullptr, out ? out + at : nullptr, true);
    if (grid.checks) order(who, request, address, true, true);
  }
  count(request, lanes, bytes, block.counters->atomics);
}

void global_copy_source(const Request& request, const SpaceLanes& lanes, const uint32_t* bytes, uint8_t* out) {
  BlockMemory& block = request.block;
  GridMemory& grid = *block.grid;
  SpaceLanes read{0, lanes.address};  // a lane that reads nothing may have any address
  bool whole = true;
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    if (bytes[lane]) read.mask |= 1u << lane;
    whole &= bytes[lane] == 0 || bytes[lane] == request.bytes;
  }
  if (!read.mask) return;
  const Places places = check(request, read, request.bytes, whole ? nullptr : bytes);
  const Accessor who = block.accessor(request.site, request.warp, 0);
  for (uint32_t mask = whole ? 1 : read.mask; mask && grid.checks; mask &= mask - 1) {
    // Lanes that read less than their width are looked at one by one.
    const int lane = std::countr_zero(mask);
    const SpaceLanes some{whole ? read.mask : 1u << lane, lanes.address};
    const uint32_t width = whole ? request.bytes : bytes[lane];
    grid.shadow.check_read(who, some, width, Strength::Weak, false);
    block.reads.note(who, some, width);
  }
  for (uint32_t mask = read.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    uint8_t* to = out + size_t(lane) * kCopyBytes;
    if (grid.adversarial) {
      block.cache.read(lanes.address[lane], bytes[lane], to);
    } else {
      copy_lane(to, places.at[lane], bytes[lane]);
    }
  }
  count(request, read, request.bytes, block.counters->async_copy);
}

void global_peek(BlockMemory& block, uint64_t address, uint32_t bytes, uint8_t* out) {
  if (block.grid->adversarial) {
    block.cache.read(address, bytes, out);
  } else {
    copy_lane(out, host_bytes(address, bytes), bytes);
  }
}

}  // namespace soft
