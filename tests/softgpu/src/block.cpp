// One block: its warps' registers and turns, its barriers, and the watch for warps that spin.
#include "block.hpp"

#include <algorithm>
#include <numeric>

#include "exec.hpp"

namespace soft {
namespace {
constexpr uint64_t kWatchInterval = 1 << 17, kWatchSteps = 1 << 14;

uint64_t random(Block& block) { return block.random = mix(block.random); }

uint64_t special_value(const Block& block, const Warp& warp, Special special, uint32_t lane) {
  const Launch& launch = block.grid->launch;
  const uint32_t thread = warp.index * kLanes + lane;
  const uint32_t* threads = launch.block;
  switch (special) {
    case Special::TidX: return thread % threads[0];
    case Special::TidY: return thread / threads[0] % threads[1];
    case Special::TidZ: return thread / threads[0] / threads[1];
    case Special::NtidX: return threads[0];
    case Special::NtidY: return threads[1];
    case Special::NtidZ: return threads[2];
    case Special::CtaidX: return warp.site.block[0];
    case Special::CtaidY: return warp.site.block[1];
    case Special::CtaidZ: return warp.site.block[2];
    case Special::NctaidX: return launch.grid[0];
    case Special::NctaidY: return launch.grid[1];
    case Special::NctaidZ: return launch.grid[2];
    case Special::Laneid: return lane;
    case Special::Warpid: return warp.index;
    case Special::Nwarpid: return block.warps.size();
    case Special::Smid: return block.linear % uint32_t(config().sm_count);
    case Special::Nsmid: return uint32_t(config().sm_count);
    case Special::Gridid: return launch.id;
    case Special::LanemaskEq: return 1u << lane;
    case Special::LanemaskLt: return (1u << lane) - 1;
    case Special::LanemaskLe: return (2ull << lane) - 1;
    case Special::LanemaskGe: return ~((1u << lane) - 1);
    case Special::LanemaskGt: return uint32_t(~((2ull << lane) - 1));
    case Special::DynamicSmemSize: return launch.dynamic_shared;
    case Special::TotalSmemSize: return shared_size(*block.memory);
    default: return 0;
  }
}

void set_specials(Block& block, Warp& warp) {
  for (const auto& [special, offset] : block.grid->code.specials) {
    if (special >= Special::Clock) continue;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t value = special_value(block, warp, special, lane);
      if (width_of(type_of(special)) == 8)
        warp.reg<uint64_t>(offset)[lane] = value;
      else
        warp.reg<uint32_t>(offset)[lane] = uint32_t(value);
    }
  }
}

void run_warp(Block& block, Warp& warp, uint64_t budget) {
  const Instruction* code = block.grid->code.instructions.data();
  Executed* executed = block.executed.data();
  uint64_t steps = 0;
  warp.yielded = false;
  while (steps < budget) {
    const Instruction& instruction = code[warp.pc++];
    uint32_t mask = warp.mask;
    if (instruction.guard != kNoRegister) {
      if (instruction.guard_defined != kNoRegister) [[unlikely]] {
        warp.site.instruction = &instruction;
        report_undefined(warp, mask & ~warp.predicate(instruction.guard_defined));
      }
      mask &= read_predicate(warp, instruction.guard, instruction.guard_negated);
    }
    Executed& count = executed[instruction.index];
    ++steps;
    ++count.warps;
    count.lanes += uint64_t(std::popcount(mask));
    if (mask) {
      warp.site.instruction = &instruction;
      instruction.handler(warp, instruction, mask);
    }
    if (warp.pc == warp.reconverge) warp.settle();
    if (warp.state != WarpState::Running || warp.yielded) break;
  }
  block.steps += steps;
  block.clock += steps;
}

void complete(Block& block, Barrier& barrier) {
  const uint32_t threads = barrier.threads, true_count = barrier.true_count;
  const auto id = uint32_t(&barrier - block.barriers);
  std::vector<uint32_t> masks = std::move(barrier.masks);
  barrier = Barrier();
  for (const Warp& warp : block.warps) {
    if (warp.state != WarpState::AtBarrier || warp.barrier != id) masks[warp.index] = 0;  // arrived and went on
  }
  barrier_met(*block.memory, id, masks.data(), uint32_t(masks.size()));
  for (Warp& warp : block.warps) {
    if (!masks[warp.index]) continue;
    warp.state = WarpState::Running;
    finish_reduction(warp, *warp.site.instruction, masks[warp.index], true_count, threads);
  }
}

void complete_if_all_are_there(Block& block, Barrier& barrier) {
  if (!barrier.arrived) return;
  if (barrier.count) {
    if (barrier.arrived * kLanes >= barrier.count) complete(block, barrier);
    return;
  }
  for (const Warp& warp : block.warps) {
    if (warp.state != WarpState::Done && !barrier.masks[warp.index]) return;
  }
  complete(block, barrier);
}

// Everything that decides what a warp does next, but for memory.
uint64_t state_of(const Block& block, const Warp& warp) {
  uint64_t hash = mix(uint64_t(warp.pc) << 32 | warp.mask);
  for (const Path& path : warp.waiting) hash = mix(hash ^ (uint64_t(path.pc) << 32 | path.mask));
  const uint64_t* words = warp.reg<uint64_t>(0);
  for (uint32_t n = 0; n < block.grid->code.file_bytes / 8; ++n)
    hash = (hash ^ words[n]) * 0x9e3779b97f4a7c15ull + (hash >> 29);
  return hash;
}

// Runs a warp until it comes back to the top of a loop. False where it does not, or comes back changed.
bool polls(Block& block, Warp& warp) {
  const auto to_loop = [&](int32_t top) {
    for (uint64_t n = 0; n < kWatchSteps && warp.state == WarpState::Running; ++n) {
      warp.backward = false;
      run_warp(block, warp, 1);
      if (warp.backward && (top < 0 || warp.pc == top)) return true;
    }
    return false;
  };
  if (!to_loop(-1)) return warp.state == WarpState::AtBarrier;
  const int32_t top = warp.pc;
  const uint64_t before = state_of(block, warp);
  if (!to_loop(top)) return warp.state == WarpState::AtBarrier;
  return state_of(block, warp) == before;
}

std::vector<uint32_t> turn_order(Block& block) {
  std::vector<uint32_t> order(block.warps.size());
  std::iota(order.begin(), order.end(), 0);
  if (config().warp_order == "reverse") std::reverse(order.begin(), order.end());
  if (config().warp_order == "shuffle") {
    for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[random(block) % n]);
  }
  return order;
}
}  // namespace

void start_block(Block& block, Grid& grid, uint32_t linear, KernelCounters& counters) {
  const Launch& launch = grid.launch;
  const Code& code = grid.code;
  const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  const uint32_t warps = (threads + kLanes - 1) / kLanes;
  block.grid = &grid;
  block.linear = linear;
  block.memory = begin_block(*grid.memory, linear, counters);
  block.random = mix(grid.seed ^ mix(launch.id << 32 | linear));
  block.steps = block.epoch = 0;
  block.clock = 1000 + linear;
  block.next_watch = kWatchInterval;
  block.polls = 0;
  block.executed.resize(code.instructions.size());
  for (Barrier& barrier : block.barriers) barrier = Barrier();
  block.warps.assign(warps, Warp());
  block.files.resize(size_t(code.file_bytes) * warps + 64);
  uint8_t* files = block.files.data() + (64 - reinterpret_cast<uintptr_t>(block.files.data()) % 64) % 64;
  for (uint32_t w = 0; w < warps; ++w) {
    Warp& warp = block.warps[w];
    warp.block = &block;
    warp.index = w;
    warp.file[0] = files + size_t(w) * code.file_bytes;
    warp.file[1] = const_cast<uint8_t*>(code.constants.data());  // never a destination
    const uint32_t lanes = std::min<uint32_t>(kLanes, threads - w * kLanes);
    warp.born = warp.live = warp.mask = lanes == kLanes ? kFullMask : (1u << lanes) - 1;
    warp.site.kernel = code.name.c_str();
    warp.site.block[0] = linear % launch.grid[0];
    warp.site.block[1] = linear / launch.grid[0] % launch.grid[1];
    warp.site.block[2] = linear / launch.grid[0] / launch.grid[1];
    warp.site.warp = w;
    for (const VirtualRegister& each : code.registers) {
      if (each.defined >= 0) warp.predicate(each.defined) = 0;
    }
    set_specials(block, warp);
  }
}

Turn run_turn(Block& block) {
  const bool watching = block.steps >= block.next_watch;
  bool running = false, done = true, all_poll = true;
  uint64_t stopped = 0;  // warps that this turn has brought to a barrier
  for (const uint32_t index : turn_order(block)) {
    Warp& warp = block.warps[index];
    if (warp.state == WarpState::Running) {
      running = true;
      if (watching) {
        all_poll = polls(block, warp) && all_poll;
        if (warp.state == WarpState::AtBarrier) stopped |= 1ull << index;
      } else {
        run_warp(block, warp, 64 + random(block) % 192);
      }
      if (warp.state == WarpState::Done) {
        for (Barrier& barrier : block.barriers) complete_if_all_are_there(block, barrier);
      }
    }
    done = done && warp.state == WarpState::Done;
  }
  if (done) return Turn::Done;
  if (!running) {
    for (Warp& warp : block.warps) {
      if (warp.state != WarpState::AtBarrier) continue;
      fault(702, "barrier-deadlock", "warps wait at barriers that the others never reach", warp.site, -1);
    }
  }
  if (!watching) return Turn::Ran;
  for (const Warp& warp : block.warps) {
    if (stopped >> warp.index & 1 && warp.state == WarpState::Running) all_poll = false;  // the others came too
  }
  block.next_watch = block.steps + kWatchInterval;
  return all_poll ? Turn::Polls : Turn::Moved;
}

void finish_block(Block& block, KernelCounters& counters) {
  end_block(*block.memory, block.warps.front().site);
  block.memory.reset();
  ++counters.blocks;
  counters.warps += block.warps.size();
}

void arrive(Block& block, Warp& warp, uint32_t id, uint32_t count, uint32_t mask, bool waits, bool reduces,
            uint32_t votes) {
  Barrier& barrier = block.barriers[id];
  const int lane = std::countr_zero(mask);
  if (!barrier.arrived) {
    barrier.count = count;
    barrier.reduces = reduces;
    barrier.masks.assign(block.warps.size(), 0);
  }
  if (barrier.count != count) {
    fault(719, "barrier-count",
          "warps wait at barrier " + std::to_string(id) + " for " + std::to_string(count) + " and for " +
              std::to_string(barrier.count) + " threads",
          warp.site, lane);
  }
  if (barrier.masks[warp.index])
    fault(719, "barrier-count", "a warp arrives twice at barrier " + std::to_string(id), warp.site, lane);
  if (barrier.reduces != reduces)
    fault(719, "barrier-operands", "bar.red meets another kind of barrier", warp.site, lane);
  ++barrier.arrived;
  barrier.masks[warp.index] = mask;
  barrier.threads += uint32_t(std::popcount(mask));
  barrier.true_count += uint32_t(std::popcount(votes));
  if (waits) {
    warp.state = WarpState::AtBarrier;
    warp.barrier = id;
  } else {
    barrier_arrive(*block.memory, id, warp.index, mask);
  }
  complete_if_all_are_there(block, barrier);
}
}  // namespace soft
