// A running warp: registers, divergence stack and the helpers that every handler uses to reach lanes.
//
// Divergence is a stack. The top entry runs; a branch whose lanes disagree makes the entry wait at the branch's
// immediate post-dominator and pushes one entry for each side; an entry that reaches where it reconverges is popped.
#pragma once
#include <bit>
#include <cstring>
#include <memory>

#include "ir.hpp"
#include "random.hpp"

namespace soft {

constexpr uint32_t kFullMask = ~0u;
constexpr int32_t kNever = -1;  // reconverges nowhere before the lanes' exit

struct Block;

struct Path {
  int32_t pc;
  int32_t reconverge;
  uint32_t mask;
};

enum class WarpState : uint8_t { Running, AtBarrier, Done };

struct Warp {
  uint8_t* file[2] = {nullptr, nullptr};  // registers, constants
  int32_t pc = 0;
  uint32_t mask = 0;  // lanes of the running path
  uint32_t live = 0;  // lanes that have not exited
  uint32_t born = 0;  // lanes it started with: the last warp of a block may be partial
  int32_t reconverge = kNever;
  WarpState state = WarpState::Running;
  uint32_t barrier = 0;       // that it sleeps at
  bool yielded = false;       // gives the other warps a turn
  bool backward = false;      // has taken a branch backwards since this was last cleared
  std::vector<Path> waiting;  // below the running path
  uint32_t index = 0;         // in the block
  Block* block = nullptr;
  Site site;

  template <class T>
  T* reg(int32_t offset) const {
    return reinterpret_cast<T*>(file[uint32_t(offset) >> 31] + (offset & INT32_MAX));
  }
  uint32_t& predicate(int32_t offset) const { return *reg<uint32_t>(offset); }

  void diverge(const Path* sides, int count, int32_t meet);  // pc and mask of each side; one side: a plain jump
  void exit(uint32_t lanes);
  void settle();  // pops paths that have reached where they reconverge
};

// What a launch holds, read by handlers.
struct Grid {
  const Launch& launch;
  const Code& code;
  uint64_t seed = 0;
  bool jitter = true;
  std::shared_ptr<GridMemory> memory;
};

struct Barrier {
  uint32_t arrived = 0;  // warps
  uint32_t count = 0;    // threads it waits for; 0: all that have not exited
  bool reduces = false;
  uint32_t threads = 0, true_count = 0;  // of bar.red
  std::vector<uint32_t> masks;           // arrived lanes by warp
};

struct Executed {
  uint64_t warps = 0, lanes = 0;
};

struct Block {
  Grid* grid = nullptr;
  uint32_t linear = 0;
  std::vector<Warp> warps;
  std::vector<uint8_t> files;  // of all warps
  std::unique_ptr<BlockMemory, void (*)(BlockMemory*)> memory{nullptr, nullptr};
  Barrier barriers[16];
  std::vector<Executed> executed;      // by instruction
  uint64_t random = 0;                 // state of the block's own generator
  uint64_t clock = 0;                  // what %clock reads
  uint64_t steps = 0, next_watch = 0;  // warp instructions; when the block is next looked at for polling
  uint64_t epoch = 0;                  // of Progress, in which it was last seen polling
  int polls = 0;
};

// A loop over lanes, each by itself: slots never overlap in part. clang checks that when it runs instead.
#if defined(__clang__)
#define SOFT_LANES for (int lane = 0; lane < kLanes; ++lane)
#else
#define SOFT_LANES _Pragma("GCC ivdep") for (int lane = 0; lane < kLanes; ++lane)
#endif

// to[lane] = from[lane] in the lanes of the mask.
template <class T>
inline void blend(T* to, const T* from, uint32_t mask) {
  SOFT_LANES
    to[lane] = (mask >> lane & 1) ? from[lane] : to[lane];
}

// Computes f(lane) for the lanes of the mask. f must be harmless in the others: the loop runs over all 32.
template <class T, class F>
inline __attribute__((always_inline)) void for_lanes(T* to, uint32_t mask, F f) {
  if (mask == kFullMask) {
    SOFT_LANES
      to[lane] = f(lane);
    return;
  }
  alignas(64) T all[kLanes];
  SOFT_LANES
    all[lane] = f(lane);
  blend(to, all, mask);
}

template <class F>
inline __attribute__((always_inline)) uint32_t lanes_where(F f) {
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result |= uint32_t(f(lane)) << lane;
  return result;
}

template <class F>
inline void each_lane(uint32_t mask, F f) {
  for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
}

std::string hex(uint64_t value);

// Aligned instructions need every lane that the warp was launched with; matrix ones need all 32.
void require_aligned(Warp& warp, uint32_t mask, bool whole_warp);
// A membermask names the executing lanes and no lane that is elsewhere. False, with a finding, where it does not.
bool check_members(Warp& warp, uint32_t mask, const uint32_t* members);
}  // namespace soft
