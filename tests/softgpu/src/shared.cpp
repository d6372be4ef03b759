// Loads, stores and atomics on shared memory: bounds, alignment, what it costs, and the shadow's rules on the way.
#include <bit>
#include <cstring>

#include "memory_atomics.hpp"
#include "memory_block.hpp"
#include "memory_overlap.hpp"

namespace soft {
namespace {

void count(const Request& request, const SpaceLanes& lanes, AccessCount& kind) {
  const AccessCount cost = count_wavefronts(lanes.mask, lanes.address, request.bytes);
  kind += cost;
  request.block.at_site(request.block.site_index(request.site.instruction)) += cost;
}

// Volatile orders nothing between lanes, though code for the lock-step warps of old relies on it.
bool is_weak(const Request& request) { return request.order == Order::Weak || request.order == Order::Volatile; }

}  // namespace

uint32_t checked_shared(const Request& request, int lane, uint64_t offset, uint32_t bytes) {
  const GridMemory& grid = *request.block.grid;
  if (offset % bytes) [[unlikely]]
    fault(716, "misaligned", std::to_string(bytes) + " bytes at shared address " + hex_address(offset), request.site,
          lane);
  const bool in_static = within(offset, bytes, grid.shape.static_shared);
  const bool in_dynamic = offset >= grid.dynamic_base && within(offset, bytes, grid.shared_bytes);
  if (!in_static && !in_dynamic) [[unlikely]]
    fault(700, "out-of-bounds",
          std::to_string(bytes) + " bytes at shared address " + hex_address(offset) + ": the block has " +
              std::to_string(grid.shape.static_shared) + " static bytes from 0 and " +
              std::to_string(grid.shape.dynamic_shared) + " dynamic bytes from " + hex_address(grid.dynamic_base),
          request.site, lane);
  return uint32_t(offset);
}

SpaceLanes shared_lanes(const Request& request, uint64_t* offsets) {
  if (request.space != Space::Generic) return {request.mask, request.address};
  for (uint32_t mask = request.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    offsets[lane] = request.address[lane] - kSharedWindow;
  }
  return {request.mask, offsets};
}

void shared_load(const Request& request, const SpaceLanes& lanes, uint8_t* out) {
  BlockMemory& block = request.block;
  const uint32_t bytes = request.bytes;
  Accessor who = block.accessor(request.site, request.warp, 0);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint32_t offset = checked_shared(request, lane, lanes.address[lane], bytes);
    if (block.grid->checks) {
      who.lane = uint32_t(lane);
      if (is_weak(request)) {
        block.shared_shadow.read(who, offset, bytes);
      } else {
        block.shared_shadow.strong_read(who, offset, bytes);
      }
    }
    copy_lane(out + size_t(lane) * bytes, block.shared.data() + offset, bytes);
  }
  count(request, lanes, block.counters->shared_load);
}

void shared_store(const Request& request, const SpaceLanes& lanes, const uint8_t* from) {
  BlockMemory& block = request.block;
  const uint32_t bytes = request.bytes;
  Accessor who = block.accessor(request.site, request.warp, 0);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1)
    checked_shared(request, std::countr_zero(mask), lanes.address[std::countr_zero(mask)], bytes);
  uint32_t differing = 0, overlapping = 0;
  if (block.grid->checks) overlapping = overlapping_lanes(lanes.mask, lanes.address, bytes, from, differing);
  if (differing && is_weak(request)) {
    const int lane = std::countr_zero(differing);
    finding("shared-race",
            "two lanes of one store write different values to shared byte " + hex_address(lanes.address[lane]),
            request.site, lane);
  }
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const auto offset = uint32_t(lanes.address[lane]);
    if (block.grid->checks && !(overlapping >> lane & 1)) {
      who.lane = uint32_t(lane);
      if (is_weak(request)) {
        block.shared_shadow.write(who, offset, bytes);
      } else {
        block.shared_shadow.strong_write(who, offset, bytes);
      }
    }
    copy_lane(block.shared.data() + offset, from + size_t(lane) * bytes, bytes);
  }
  count(request, lanes, block.counters->shared_store);
}

void shared_atomic(const Request& request, const SpaceLanes& lanes, AtomicOp op, AtomicType type, const uint8_t* a,
                   const uint8_t* b, uint8_t* out) {
  BlockMemory& block = request.block;
  const uint32_t bytes = width_of(type);
  Accessor who = block.accessor(request.site, request.warp, 0);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint32_t offset = checked_shared(request, lane, lanes.address[lane], bytes);
    if (block.grid->checks) {
      who.lane = uint32_t(lane);
      block.shared_shadow.require_written(who, offset, bytes);
      block.shared_shadow.strong_write(who, offset, bytes);
    }
    const size_t at = size_t(lane) * bytes;
    apply_atomic(op, type, block.shared.data() + offset, a + at, b ? b + at : nullptr, out ? out + at : nullptr,
                 false);
  }
  count(request, lanes, block.counters->atomics);
}

}  // namespace soft
