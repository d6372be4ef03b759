// The joins behind happens-before. See the header for the model.
#include "memory_clocks.hpp"

#include <algorithm>
#include <bit>

namespace soft {
namespace {

constexpr uint32_t kWarpLanes = 32;

std::shared_ptr<const Row> join_rows(const std::shared_ptr<const Row>& a, const std::shared_ptr<const Row>& b) {
  if (a == b) return a;
  auto row = std::make_shared<Row>();
  row->warps.resize(a->warps.size());
  for (size_t i = 0; i < row->warps.size(); ++i) row->warps[i] = std::max(a->warps[i], b->warps[i]);
  auto x = a->threads.begin();
  auto y = b->threads.begin();
  while (x != a->threads.end() || y != b->threads.end()) {
    std::pair<uint32_t, uint32_t> next;
    if (y == b->threads.end() || (x != a->threads.end() && x->first < y->first)) {
      next = *x++;
    } else if (x == a->threads.end() || y->first < x->first) {
      next = *y++;
    } else {
      next = {x->first, std::max(x->second, y->second)};
      ++x, ++y;
    }
    if (next.second > row->warps[next.first / kWarpLanes]) row->threads.push_back(next);
  }
  return row;
}

}  // namespace

uint32_t Row::time_of(uint32_t thread) const {
  const auto at = std::lower_bound(threads.begin(), threads.end(), std::pair(thread, 0u));
  const uint32_t own = at != threads.end() && at->first == thread ? at->second : 0;
  return std::max(own, warps[thread / kWarpLanes]);
}

uint32_t Clock::time_of(uint32_t block, uint32_t thread) const {
  const auto at = std::lower_bound(blocks.begin(), blocks.end(), block,
                                   [](const auto& entry, uint32_t value) { return entry.first < value; });
  return at != blocks.end() && at->first == block ? at->second->time_of(thread) : 0;
}

ClockPtr join(const ClockPtr& a, const ClockPtr& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto out = std::make_shared<Clock>();
  out->blocks.reserve(a->blocks.size() + b->blocks.size());
  auto x = a->blocks.begin();
  auto y = b->blocks.begin();
  while (x != a->blocks.end() || y != b->blocks.end()) {
    if (y == b->blocks.end() || (x != a->blocks.end() && x->first < y->first)) {
      out->blocks.push_back(*x++);
    } else if (x == a->blocks.end() || y->first < x->first) {
      out->blocks.push_back(*y++);
    } else {
      out->blocks.emplace_back(x->first, join_rows(x->second, y->second));
      ++x, ++y;
    }
  }
  return out;
}

uint32_t ClockIndex::id_of(const ClockPtr& clock) {
  if (!clock) return 0;
  if (const uint32_t id = clock->id.load(std::memory_order_acquire)) return id;
  const std::lock_guard lock(mutex_);
  if (!clock->id.load(std::memory_order_relaxed)) {
    clocks_.push_back(clock);
    clock->id.store(uint32_t(clocks_.size()), std::memory_order_release);
  }
  return clock->id.load(std::memory_order_relaxed);
}

ClockPtr ClockIndex::at(uint32_t id) const {
  if (!id) return nullptr;
  const std::lock_guard lock(mutex_);
  return clocks_[id - 1];
}

ClockPtr Publications::read(uint64_t address) const {
  if (!any()) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = at_.find(address);
  return found == at_.end() ? nullptr : found->second;
}

void Publications::publish(uint64_t address, const ClockPtr& clock, bool keep) {
  if (!clock && (keep || !any())) return;
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_release);
  ClockPtr& at = at_[address];
  at = keep ? join(at, clock) : clock;
}

void BlockClocks::reset(uint32_t block, uint32_t threads) {
  block_ = block;
  threads_ = threads;
  warp_count_ = (threads + kWarpLanes - 1) / kWarpLanes;
  now_ = 1;
  warps_.assign(warp_count_ * warp_count_, 0);
  floor_.assign(warp_count_, 0);
  dense_.clear();
  if (foreign_) {
    fenced_.clear();
    pending_.clear();
    acquired_.clear();
    foreign_ = false;
  }
  for (Arrivals& arrived : arrivals_) arrived = Arrivals();
}

bool BlockClocks::knows_by_clock(uint32_t reader, uint32_t block, uint32_t thread, uint32_t time) const {
  const ClockPtr& clock = acquired_[reader];
  return clock && clock->time_of(block, thread) >= time;
}

void BlockClocks::use_clocks() {
  if (foreign_) return;
  foreign_ = true;
  fenced_.resize(threads_);
  pending_.resize(threads_);
  acquired_.resize(threads_);
}

void BlockClocks::arrive(uint32_t barrier, uint32_t warp, uint32_t mask) {
  Arrivals& arrived = arrivals_[barrier];
  arrived.known.resize(threads_);
  arrived.whole_warps &= mask == born(warp);
  for (; mask; mask &= mask - 1) {
    const uint32_t thread = warp * kWarpLanes + uint32_t(std::countr_zero(mask));
    for (uint32_t other = 0; other < threads_; ++other) {
      const uint32_t time = dense_.empty() ? warps_[warp * warp_count_ + other / kWarpLanes]
                                           : dense_[thread * threads_ + other];
      arrived.known[other] = std::max(arrived.known[other], other == thread ? now_ : time);
    }
    if (!foreign_) continue;
    arrived.fenced = join(arrived.fenced, fenced_[thread]);
    arrived.acquired = join(arrived.acquired, acquired_[thread]);
  }
  ++now_;
}

void BlockClocks::synchronize(const uint32_t* masks, uint32_t first_warp, uint32_t warps, int barrier) {
  Arrivals arrived;
  if (barrier >= 0) std::swap(arrived, arrivals_[barrier]);
  bool whole = arrived.whole_warps, all = first_warp == 0 && warps == warp_count_;
  for (uint32_t i = 0; i < warps; ++i) {
    whole &= masks[i] == 0 || masks[i] == born(first_warp + i);
    all &= masks[i] == born(first_warp + i);
  }
  std::vector<uint32_t> threads;
  if (!whole || !dense_.empty() || foreign_) {
    for (uint32_t i = 0; i < warps; ++i)
      for (uint32_t mask = masks[i]; mask; mask &= mask - 1)
        threads.push_back((first_warp + i) * kWarpLanes + uint32_t(std::countr_zero(mask)));
  }
  if (all) {
    dense_.clear();
    std::fill(warps_.begin(), warps_.end(), now_);
    std::fill(floor_.begin(), floor_.end(), now_);
  } else if (whole && dense_.empty()) {
    synchronize_warps(masks, first_warp, warps, arrived);
  } else {
    synchronize_threads(threads, arrived);
  }
  if (foreign_) {
    ClockPtr fenced = arrived.fenced, acquired = arrived.acquired;
    for (const uint32_t thread : threads) {
      if (fenced_[thread] != fenced) fenced = join(fenced, fenced_[thread]);
      if (acquired_[thread] != acquired) acquired = join(acquired, acquired_[thread]);
    }
    for (const uint32_t thread : threads) fenced_[thread] = fenced, acquired_[thread] = acquired;
  }
  ++now_;
}

void BlockClocks::synchronize_warps(const uint32_t* masks, uint32_t first_warp, uint32_t warps,
                                    const Arrivals& arrived) {
  uint32_t known[kWarpLanes] = {};
  for (uint32_t thread = 0; thread < arrived.known.size(); ++thread) {
    uint32_t& of_warp = known[thread / kWarpLanes];
    of_warp = thread % kWarpLanes ? std::min(of_warp, arrived.known[thread]) : arrived.known[thread];
  }
  for (uint32_t i = 0; i < warps; ++i) {
    if (!masks[i]) continue;
    const uint32_t* row = &warps_[(first_warp + i) * warp_count_];
    for (uint32_t other = 0; other < warp_count_; ++other) known[other] = std::max(known[other], row[other]);
  }
  for (uint32_t i = 0; i < warps; ++i)
    if (masks[i]) known[first_warp + i] = now_;
  const uint32_t floor = *std::min_element(known, known + warp_count_);
  for (uint32_t i = 0; i < warps; ++i) {
    if (!masks[i]) continue;
    std::copy(known, known + warp_count_, &warps_[(first_warp + i) * warp_count_]);
    floor_[first_warp + i] = floor;
  }
}

void BlockClocks::synchronize_threads(const std::vector<uint32_t>& threads, const Arrivals& arrived) {
  if (dense_.empty()) {
    dense_.resize(size_t(threads_) * threads_);
    for (uint32_t knower = 0; knower < threads_; ++knower)
      for (uint32_t known = 0; known < threads_; ++known)
        dense_[knower * threads_ + known] = warps_[(knower >> 5) * warp_count_ + (known >> 5)];
  }
  std::vector<uint32_t> known = arrived.known;
  known.resize(threads_);
  for (const uint32_t thread : threads) {
    const uint32_t* row = &dense_[thread * threads_];
    for (uint32_t i = 0; i < threads_; ++i) known[i] = std::max(known[i], row[i]);
  }
  for (const uint32_t thread : threads) known[thread] = now_;
  for (const uint32_t thread : threads) std::copy(known.begin(), known.end(), &dense_[thread * threads_]);
}

ClockPtr BlockClocks::snapshot(uint32_t thread) const {
  auto row = std::make_shared<Row>();
  if (dense_.empty()) {
    const uint32_t* known = &warps_[(thread >> 5) * warp_count_];
    row->warps.assign(known, known + warp_count_);
    row->threads.emplace_back(thread, now_);
  } else {
    row->warps.assign(warp_count_, 0);
    for (uint32_t other = 0; other < threads_; ++other) {
      const uint32_t time = other == thread ? now_ : dense_[thread * threads_ + other];
      if (time) row->threads.emplace_back(other, time);
    }
  }
  auto clock = std::make_shared<Clock>();
  clock->blocks.emplace_back(block_, std::move(row));
  return join(clock, acquired_[thread]);
}

void BlockClocks::fence(uint32_t warp, uint32_t mask) {
  use_clocks();
  for (; mask; mask &= mask - 1) {
    const uint32_t thread = warp * kWarpLanes + uint32_t(std::countr_zero(mask));
    if (pending_[thread]) acquired_[thread] = join(acquired_[thread], pending_[thread]);
    pending_[thread] = nullptr;
    fenced_[thread] = join(fenced_[thread], snapshot(thread));
  }
  ++now_;
}

ClockPtr BlockClocks::release(uint32_t thread) {
  use_clocks();
  ClockPtr clock = join(fenced_[thread], snapshot(thread));
  ++now_;
  return clock;
}

void BlockClocks::observe(uint32_t thread, const ClockPtr& clock, bool acquire) {
  if (!clock) return;
  use_clocks();
  ClockPtr& to = acquire ? acquired_[thread] : pending_[thread];
  to = join(to, clock);
}

}  // namespace soft
