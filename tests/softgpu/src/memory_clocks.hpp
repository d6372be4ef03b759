// Happens-before: which accesses of which threads a thread may rely on.
//
// A block counts time: `now` is stamped on every access and moves on at every event that orders something. Inside the
// block a thread knows the accesses of another up to a time; barriers and warp syncs join what their threads know.
// Most blocks synchronise whole warps only, so knowledge is kept by pairs of warps until an event takes part of a
// warp.
//
// Between blocks knowledge travels as a Clock: what a thread had behind a fence when it wrote to an address strongly,
// or all that it knew when it released there; whoever reads the address strongly and then fences (or acquires) has
// it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace soft {

// Times up to which the threads of one block are known: by warp, and later ones of single threads.
struct Row {
  std::vector<uint32_t> warps;
  std::vector<std::pair<uint32_t, uint32_t>> threads;  // (thread, time), ascending
  uint32_t time_of(uint32_t thread) const;
};

struct Clock;
using ClockPtr = std::shared_ptr<const Clock>;
struct Clock {
  std::vector<std::pair<uint32_t, std::shared_ptr<const Row>>> blocks;  // ascending
  mutable std::atomic<uint32_t> id{0};                                  // in its grid's ClockIndex; 0: none yet
  uint32_t time_of(uint32_t block, uint32_t thread) const;
};
ClockPtr join(const ClockPtr& a, const ClockPtr& b);

// Numbers for clocks, small enough to be kept with every written word. 0 is the clock that knows nothing.
class ClockIndex {
 public:
  uint32_t id_of(const ClockPtr& clock);
  ClockPtr at(uint32_t id) const;

 private:
  mutable std::mutex mutex_;
  std::vector<ClockPtr> clocks_;
};

// What has been published at each address of a grid's strong writes.
class Publications {
 public:
  bool any() const { return any_.load(std::memory_order_acquire); }
  ClockPtr read(uint64_t address) const;
  // keep: a read-modify-write, which continues what is there
  void publish(uint64_t address, const ClockPtr& clock, bool keep);

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> any_{false};
  std::unordered_map<uint64_t, ClockPtr> at_;
};

class BlockClocks {
 public:
  void reset(uint32_t block, uint32_t threads);
  uint32_t now() const { return now_; }
  // Everything in the block up to this time is known to all lanes of the warp: the cheap first question.
  uint32_t floor(uint32_t warp) const { return floor_[warp]; }
  bool knows(uint32_t reader, uint32_t writer, uint32_t time) const {
    if (reader == writer) return true;
    const uint32_t known = dense_.empty() ? warps_[(reader >> 5) * warp_count_ + (writer >> 5)]
                                          : dense_[reader * threads_ + writer];
    return known >= time || (foreign_ && knows_by_clock(reader, block_, writer, time));
  }
  bool knows_other_block(uint32_t reader, uint32_t block, uint32_t thread, uint32_t time) const {
    return foreign_ && knows_by_clock(reader, block, thread, time);
  }
  bool whole_warps() const { return dense_.empty(); }
  uint32_t warp_count() const { return warp_count_; }
  // The lanes that the warp started with: the last one may be partial.
  uint32_t born(uint32_t warp) const {
    return warp + 1 < warp_count_ || threads_ % 32 == 0 ? ~0u : (1u << threads_ % 32) - 1;
  }

  // These lanes met. `barrier`: those that had arrived there and gone on are known to them, up to then.
  void synchronize(const uint32_t* masks, uint32_t first_warp, uint32_t warps, int barrier = -1);
  void arrive(uint32_t barrier, uint32_t warp, uint32_t mask);  // without waiting
  void fence(uint32_t warp, uint32_t mask);
  ClockPtr fenced(uint32_t thread) const { return foreign_ ? fenced_[thread] : nullptr; }
  ClockPtr release(uint32_t thread);
  void observe(uint32_t thread, const ClockPtr& clock, bool acquire);
  ClockPtr acquired(uint32_t thread) const { return foreign_ ? acquired_[thread] : nullptr; }
  bool released_anything() const { return foreign_; }

 private:
  struct Arrivals {               // at a barrier, of those that did not wait
    std::vector<uint32_t> known;  // [thread]: time; empty where there are none
    bool whole_warps = true;
    ClockPtr fenced, acquired;
  };
  bool knows_by_clock(uint32_t reader, uint32_t block, uint32_t thread, uint32_t time) const;
  void use_clocks();
  void synchronize_warps(const uint32_t* masks, uint32_t first_warp, uint32_t warps, const Arrivals& arrived);
  void synchronize_threads(const std::vector<uint32_t>& threads, const Arrivals& arrived);
  ClockPtr snapshot(uint32_t thread) const;

  uint32_t block_ = 0, threads_ = 0, warp_count_ = 0, now_ = 1;
  std::vector<uint32_t> warps_;  // [knower][known]: time
  std::vector<uint32_t> floor_;  // [warp]
  std::vector<uint32_t> dense_;  // [knower][known] by thread; empty while whole warps synchronise
  bool foreign_ = false;         // the clocks below are in use
  std::vector<ClockPtr> fenced_, pending_, acquired_;  // by thread
  Arrivals arrivals_[16];                              // by barrier
};
}  // namespace soft
