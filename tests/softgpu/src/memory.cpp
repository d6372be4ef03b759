// A launch's memory from its begin to its end, and the way of each request to the space that it names.
#include "memory.hpp"

#include <bit>
#include <cstring>

#include "ir.hpp"
#include "memory_atomics.hpp"
#include "memory_block.hpp"

namespace soft {
namespace {

bool names(const std::string& list, const std::string& name) {
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (list.compare(begin, end - begin, name) == 0) return true;
    begin = end + 1;
  }
  return false;
}

thread_local std::vector<std::unique_ptr<BlockMemory>> spare_blocks;

void recycle(BlockMemory* block) {
  if (!block) return;
  block->pages = GridPageCache();
  block->reads.reset();
  block->cache.reset();
  spare_blocks.emplace_back(block);
}

// The lanes of a generic request by the window that their address lies in.
struct Routed {
  uint32_t shared = 0, local = 0, global = 0;
  uint64_t offset[kLanes];
};

Routed route(const Request& request) {
  Routed routed;
  for (uint32_t mask = request.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint64_t address = request.address[lane];
    if (address >= kSharedWindow && address < kSharedWindow + kWindowBytes) {
      routed.shared |= 1u << lane;
      routed.offset[lane] = address - kSharedWindow;
    } else if (address >= kLocalWindow && address < kLocalWindow + kWindowBytes) {
      routed.local |= 1u << lane;
      routed.offset[lane] = address - kLocalWindow;
    } else {
      routed.global |= 1u << lane;
      routed.offset[lane] = address;
    }
  }
  return routed;
}

uint8_t* checked_local(const Request& request, int lane, uint64_t offset) {
  BlockMemory& block = request.block;
  const uint32_t size = block.grid->shape.local_bytes;
  if (offset % request.bytes)
    fault(716, "misaligned", std::to_string(request.bytes) + " bytes at local address " + hex_address(offset),
          request.site, lane);
  if (!within(offset, request.bytes, size))
    fault(700, "out-of-bounds",
          std::to_string(request.bytes) + " bytes at local address " + hex_address(offset) + ": a thread has " +
              std::to_string(size),
          request.site, lane);
  return block.local.data() + (size_t(request.warp) * kLanes + size_t(lane)) * size + offset;
}

void count_local_access(const Request& request, const SpaceLanes& lanes) {
  const AccessCount cost = count_local(lanes.mask, lanes.address, request.bytes);
  request.block.counters->local += cost;
  request.block.at_site(request.block.site_index(request.site.instruction)) += cost;
}

void local_load(const Request& request, const SpaceLanes& lanes, uint8_t* out) {
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    copy_lane(out + size_t(lane) * request.bytes, checked_local(request, lane, lanes.address[lane]), request.bytes);
  }
  count_local_access(request, lanes);
}

void local_store(const Request& request, const SpaceLanes& lanes, const uint8_t* from) {
  for (uint32_t mask = lanes.mask; mask; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    copy_lane(checked_local(request, lane, lanes.address[lane]), from + size_t(lane) * request.bytes, request.bytes);
  }
  count_local_access(request, lanes);
}

}  // namespace

uint16_t SiteTable::index_of(const Instruction* instruction) {
  const std::lock_guard lock(mutex_);
  const auto [at, added] = numbers_.try_emplace(instruction, uint16_t(instructions_.size()));
  if (added) instructions_.push_back(instruction);
  return at->second;
}

const Instruction* SiteTable::at(uint16_t index) const {
  const std::lock_guard lock(mutex_);
  return index < instructions_.size() ? instructions_[index] : nullptr;
}

GridMemory::GridMemory(const GridShape& grid)
    : shape(grid),
      kernel(grid.kernel),
      threads(grid.block[0] * grid.block[1] * grid.block[2]),
      warps((threads + kLanes - 1) / kLanes),
      dynamic_base(dynamic_shared_base(grid.static_shared, grid.dynamic_alignment)),
      shared_bytes(dynamic_base + grid.dynamic_shared),
      checks(config().checks),
      adversarial(config().adversarial),
      float_atomics(names(config().allow_float_atomics, kernel)) {
  shape.kernel = kernel.c_str();
}

Site GridMemory::site_of(uint32_t block, uint32_t thread, uint16_t site) const {
  Site out;
  out.kernel = kernel.c_str();
  out.block[0] = block % shape.grid[0];
  out.block[1] = block / shape.grid[0] % shape.grid[1];
  out.block[2] = block / shape.grid[0] / shape.grid[1];
  out.warp = thread / kLanes;
  out.instruction = sites.at(site);
  return out;
}

void BlockMemory::begin(GridMemory& of, uint32_t linear, KernelCounters& to) {
  grid = &of;
  index = linear;
  counters = &to;
  random = (config().seed + 1) * 0x9e3779b97f4a7c15ull ^ (of.shape.launch_id << 32 | linear) * 0xbf58476d1ce4e5b9ull;
  clocks.reset(linear, of.threads);
  shared.assign(of.shared_bytes, kPoison);
  local.assign(size_t(of.threads) * of.shape.local_bytes, kPoison);
  if (of.checks) shared_shadow.reset(of.shared_bytes);
  async.reset(of.threads);
  std::fill(std::begin(site_slots_), std::end(site_slots_), std::pair<const Instruction*, uint16_t>());
  site_counts_.clear();
  windows_generation_ = 0;
}

void BlockMemory::finish() {
  async.finish(*this);
  if (grid->adversarial) cache.drain();
  if (grid->checks) grid->shadow.add_reads(index, reads, clocks.released_anything());
  for (uint16_t site = 0; site < site_counts_.size(); ++site) {
    const Instruction* instruction = grid->sites.at(site);
    if (!site_counts_[site].requests || !instruction || !instruction->line) continue;
    SiteCount& to = counters->sites[uint32_t(instruction->line->line)];
    if (to.text.empty()) to.text = instruction->line->text, to.source = instruction->line->source;
    to.count += site_counts_[site];
  }
}

const Window* BlockMemory::find_window(uint64_t address, uint64_t bytes) {
  if (const uint64_t generation = allocation_generation(); windows_generation_ != generation) {
    std::fill(std::begin(windows_), std::end(windows_), Window());
    windows_generation_ = generation;
  }
  for (uint32_t i = 0; i < kWindows; ++i) {
    if (!inside(windows_[i], address, bytes)) continue;
    last_window_ = i;
    return &windows_[i];
  }
  Window found;
  if (!soft::find_window(address, found) || !inside(found, address, bytes)) return nullptr;
  last_window_ = next_window_;
  next_window_ = (next_window_ + 1) % kWindows;
  windows_[last_window_] = found;
  return &windows_[last_window_];
}

std::shared_ptr<GridMemory> begin_grid(const GridShape& shape) { return std::make_shared<GridMemory>(shape); }

void end_grid(GridMemory& grid) {
  if (!grid.checks) return;
  grid.shadow.finish(grid);
  for (const std::string& what : nonzero_counters()) finding("counter-not-zero", what, "kernel " + grid.kernel);
}

const std::vector<uint64_t>& written_pages(const GridMemory& grid) { return grid.written; }
const std::vector<uint64_t>& read_pages(const GridMemory& grid) { return grid.read; }

std::unique_ptr<BlockMemory, void (*)(BlockMemory*)> begin_block(GridMemory& grid, uint32_t linear_block,
                                                                KernelCounters& counters) {
  std::unique_ptr<BlockMemory, void (*)(BlockMemory*)> block(nullptr, recycle);
  if (spare_blocks.empty()) {
    block.reset(new BlockMemory());
  } else {
    block.reset(spare_blocks.back().release());
    spare_blocks.pop_back();
  }
  block->begin(grid, linear_block, counters);
  return block;
}

void end_block(BlockMemory& block, const Site&) { block.finish(); }

void load(const Request& request, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  switch (request.space) {
    case Space::Global:
    case Space::Const: return global_load(request, {request.mask, request.address}, to);
    case Space::Shared: return shared_load(request, {request.mask, request.address}, to);
    case Space::Local: return local_load(request, {request.mask, request.address}, to);
    case Space::Param: unsupported("a load from parameters that reaches device memory");
    case Space::Generic: break;
  }
  const Routed routed = route(request);
  if (routed.shared) shared_load(request, {routed.shared, routed.offset}, to);
  if (routed.local) local_load(request, {routed.local, routed.offset}, to);
  if (routed.global) global_load(request, {routed.global, routed.offset}, to);
}

void store(const Request& request, const void* from) {
  const auto* value = static_cast<const uint8_t*>(from);
  switch (request.space) {
    case Space::Global: return global_store(request, {request.mask, request.address}, value);
    case Space::Shared: return shared_store(request, {request.mask, request.address}, value);
    case Space::Local: return local_store(request, {request.mask, request.address}, value);
    case Space::Const:
    case Space::Param: unsupported("a store to constants or parameters");
    case Space::Generic: break;
  }
  const Routed routed = route(request);
  if (routed.shared) shared_store(request, {routed.shared, routed.offset}, value);
  if (routed.local) local_store(request, {routed.local, routed.offset}, value);
  if (routed.global) global_store(request, {routed.global, routed.offset}, value);
}

void atomic(const Request& request, AtomicOp op, AtomicType type, const void* a, const void* b, void* out) {
  const auto* first = static_cast<const uint8_t*>(a);
  const auto* second = static_cast<const uint8_t*>(b);
  auto* old = static_cast<uint8_t*>(out);
  if (is_float(type) && request.block.grid->checks && !request.block.grid->float_atomics)
    finding("float-atomic", "the order of these sums, and so their value, changes from run to run", request.site,
            std::countr_zero(request.mask));
  Routed routed;
  switch (request.space) {
    case Space::Generic: routed = route(request); break;
    case Space::Global: routed.global = request.mask; break;
    case Space::Shared: routed.shared = request.mask; break;
    default: unsupported("an atomic outside global and shared memory");
  }
  if (routed.local) unsupported("an atomic outside global and shared memory");
  const uint64_t* address = request.space == Space::Generic ? routed.offset : request.address;
  if (routed.shared) shared_atomic(request, {routed.shared, address}, op, type, first, second, old);
  if (routed.global) global_atomic(request, {routed.global, address}, op, type, first, second, old);
}

void async_copy(const Request& request, const uint64_t* source, const uint32_t* source_bytes) {
  request.block.async.issue(request, source, source_bytes);
}

void async_commit(BlockMemory& block, const Site&, uint32_t warp, uint32_t mask) {
  block.async.commit(block, warp, mask);
}

void async_wait(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask, uint32_t pending_groups) {
  block.async.wait(block, site, warp, mask, pending_groups);
}

void fence(BlockMemory& block, const Site&, uint32_t warp, uint32_t mask, Scope scope) {
  if (scope == Scope::Cta) return;
  if (block.grid->adversarial) {
    block.cache.drain();
    block.cache.drop();
  }
  if (block.grid->checks) block.clocks.fence(warp, mask);
}

void warp_sync(BlockMemory& block, uint32_t warp, uint32_t mask) {
  if (block.grid->checks) block.clocks.synchronize(&mask, warp, 1);
}

void barrier_arrive(BlockMemory& block, uint32_t barrier, uint32_t warp, uint32_t mask) {
  if (block.grid->checks) block.clocks.arrive(barrier, warp, mask);
}

void barrier_met(BlockMemory& block, uint32_t barrier, const uint32_t* masks, uint32_t warps) {
  if (block.grid->checks) block.clocks.synchronize(masks, 0, warps, int(barrier));
}

uint32_t shared_size(const BlockMemory& block) { return block.grid->shared_bytes; }

}  // namespace soft
