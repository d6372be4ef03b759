// Issues, lands and completes asynchronous copies. See the header.
#include "async.hpp"

#include <bit>
#include <cstring>

#include "memory_block.hpp"
#include "random.hpp"

namespace soft {

void AsyncCopies::reset(uint32_t threads) {
  for (auto& copies : pending_) copies.clear();
  pending_.resize((threads + 31) / 32);
  groups_.assign(threads, 0);
}

void AsyncCopies::issue(const Request& request, const uint64_t* source, const uint32_t* source_bytes) {
  BlockMemory& block = request.block;
  if (request.bytes != 4 && request.bytes != 8 && request.bytes != 16) unsupported("cp.async of another size");
  uint64_t offsets[kLanes];
  const SpaceLanes lanes = shared_lanes(request, offsets);
  Copy copy{};
  copy.site = request.site;
  copy.bytes = request.bytes;
  copy.moment = Moment(next_random(block.random) % 3);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    copy.offset[lane] = checked_shared(request, lane, lanes.address[lane], request.bytes);
    copy.source[lane] = source[lane];
    copy.source_bytes[lane] = source_bytes ? std::min(source_bytes[lane], request.bytes) : request.bytes;
  }
  global_copy_source(request, {lanes.mask, source}, copy.source_bytes, copy.before);
  Accessor who = block.accessor(request.site, request.warp, 0);
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    who.lane = uint32_t(lane);
    if (block.grid->checks) block.shared_shadow.copy_issued(who, copy.offset[lane], copy.bytes);
    std::memset(block.shared.data() + copy.offset[lane], kPoison, copy.bytes);
  }
  if (copy.moment == Moment::Issue) {
    land(block, copy, lanes.mask);
    copy.landed = true;
  }
  // Lanes that have committed differently often wait for this copy at different times.
  for (uint32_t left = lanes.mask; left;) {
    copy.group = groups_[request.warp * kLanes + uint32_t(std::countr_zero(left))];
    copy.mask = 0;
    for (uint32_t mask = left; mask; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      if (groups_[request.warp * kLanes + uint32_t(lane)] == copy.group) copy.mask |= 1u << lane;
    }
    left &= ~copy.mask;
    pending_[request.warp].push_back(copy);
  }
}

void AsyncCopies::commit(BlockMemory& block, uint32_t warp, uint32_t mask) {
  for (Copy& copy : pending_[warp]) {
    if (copy.landed || copy.moment != Moment::Commit || (copy.mask & ~mask)) continue;
    land(block, copy, copy.mask);
    copy.landed = true;
  }
  for (; mask; mask &= mask - 1) ++groups_[warp * kLanes + uint32_t(std::countr_zero(mask))];
}

void AsyncCopies::wait(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask, uint32_t pending_groups) {
  Accessor who = block.accessor(site, warp, 0);
  std::erase_if(pending_[warp], [&](Copy& copy) {
    uint32_t done = 0;
    for (uint32_t left = copy.mask & mask; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      const uint64_t committed = groups_[warp * kLanes + uint32_t(lane)];
      if (pending_groups == ~0u || uint64_t(copy.group) + pending_groups < committed) done |= 1u << lane;
    }
    if (!done) return false;
    if (!copy.landed) land(block, copy, done);
    for (uint32_t left = done; left && block.grid->checks; left &= left - 1) {
      who.lane = uint32_t(std::countr_zero(left));
      block.shared_shadow.copy_landed(who, copy.offset[who.lane], copy.bytes);
    }
    // The source had to stay as it was until here, whenever the copy happened to read it.
    for (uint32_t left = done; left && copy.landed && block.grid->checks; left &= left - 1)
      check_source(block, copy, std::countr_zero(left));
    copy.mask &= ~done;
    return copy.mask == 0;
  });
}

void AsyncCopies::check_source(BlockMemory& block, const Copy& copy, int lane) {
  if (!copy.source_bytes[lane]) return;  // its address may be anything
  uint8_t now[kCopyBytes];
  global_peek(block, copy.source[lane], copy.source_bytes[lane], now);
  if (std::memcmp(now, copy.before + lane * kCopyBytes, copy.source_bytes[lane]) != 0)
    finding("async-source-changed",
            "the " + std::to_string(copy.source_bytes[lane]) + " bytes at " + hex_address(copy.source[lane]) +
                " changed between the copy's issue and its wait",
            copy.site, lane);
}

void AsyncCopies::land(BlockMemory& block, const Copy& copy, uint32_t mask) {
  for (; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint32_t bytes = copy.source_bytes[lane];
    uint8_t* to = block.shared.data() + copy.offset[lane];
    if (bytes) global_peek(block, copy.source[lane], bytes, to);
    std::memset(to + bytes, 0, copy.bytes - bytes);
    if (copy.moment != Moment::Issue && block.grid->checks) check_source(block, copy, lane);
  }
}

void AsyncCopies::finish(BlockMemory& block) {
  for (const auto& copies : pending_)
    for (const Copy& copy : copies)
      if (block.grid->checks)
        finding("async-pending", "the block ends before this copy has been waited for", copy.site,
                std::countr_zero(copy.mask));
}

}  // namespace soft
