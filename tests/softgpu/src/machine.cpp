// Launches: blocks over host threads.
#include "machine.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>

#include "block.hpp"
#include "decode.hpp"

namespace soft {
std::string hex(uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string digits;
  do {
    digits.insert(digits.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value);
  return "0x" + digits;
}

std::string describe(const Site& site, int lane) {
  std::string out = std::string(site.kernel) + " block (" + std::to_string(site.block[0]) + "," +
                    std::to_string(site.block[1]) + "," + std::to_string(site.block[2]) + ") warp " +
                    std::to_string(site.warp);
  if (lane >= 0) out += " lane " + std::to_string(lane);
  if (!site.instruction || !site.instruction->line) return out;
  const SourceLine& line = *site.instruction->line;
  out += ", ptx line " + std::to_string(line.line);
  if (!line.source.empty()) out += " (" + line.source + ")";
  return out + ": " + line.text;
}

namespace {
// A loop of shared memory or asynchronous copies gets through this many in less than half a minute.
constexpr uint64_t kInstructionLimit = 100'000'000;

// Host threads that stay: the memory of blocks is kept by the thread that ran them.
class Workers {
 public:
  // Runs job(0) here and job(1) .. job(count - 1) on threads, to their ends.
  void run(int count, const std::function<void(int)>& job) {
    int left = count - 1;
    std::mutex mutex;
    std::condition_variable finished;
    for (int n = 1; n < count; ++n) {
      submit([&, n] {
        job(n);
        const std::lock_guard lock(mutex);
        --left;
        finished.notify_one();
      });
    }
    job(0);
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return left == 0; });
  }

 private:
  void submit(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (idle_ < int(jobs_.size())) {
      std::thread([this] { work(); }).detach();
      ++idle_;
    }
    wake_.notify_one();
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.back());
      jobs_.pop_back();
      --idle_;
      lock.unlock();
      job();
      lock.lock();
      ++idle_;
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> jobs_;
  int idle_ = 0;
};

Workers& workers() {
  static Workers* all = new Workers();  // its threads outlive main
  return *all;
}

// One launch: which blocks are still to run, and whether those that run get anywhere.
class Execution {
 public:
  explicit Execution(Grid& grid) : grid_(grid) {
    const uint32_t* size = grid.launch.grid;
    order_.resize(size_t(size[0]) * size[1] * size[2]);
    std::iota(order_.begin(), order_.end(), 0);
    if (config().block_order == "reverse") std::reverse(order_.begin(), order_.end());
    if (config().block_order == "shuffle") {
      uint64_t random = mix(grid.seed ^ grid.launch.id);
      for (size_t n = order_.size(); n > 1; --n) std::swap(order_[n - 1], order_[(random = mix(random)) % n]);
    }
    limit_ = config().instruction_limit ? config().instruction_limit : kInstructionLimit;
  }

  void run() {
    const int machine = std::max(1, int(std::thread::hardware_concurrency()));
    const int available = config().threads ? config().threads : machine;
    const int resident = config().resident_blocks ? config().resident_blocks : available;
    const int slots = int(std::min<size_t>(size_t(resident), order_.size()));
    const int threads = std::min(available, slots);
    std::vector<KernelCounters> counters(static_cast<size_t>(threads));
    workers().run(threads,
                  [&](int n) { work(slots / threads + (n < slots % threads ? 1 : 0), counters[size_t(n)]); });
    for (size_t n = 1; n < counters.size(); ++n) counters[0].add(counters[n]);
    counters[0].launches += 1;
    merge_counters(grid_.code.name, counters[0]);
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  bool take(uint32_t* linear) {
    const std::lock_guard lock(mutex_);
    if (stop_ || next_ == order_.size()) return false;
    *linear = order_[next_++];
    ++resident_;
    moved();
    return true;
  }
  void moved() {
    ++epoch_;
    stuck_ = 0;
  }

  // Two polls in a row of every block that runs, with nothing else happening: none will ever go on.
  void note(Block& block, Turn turn) {
    const std::lock_guard lock(mutex_);
    if (turn == Turn::Done) --resident_;
    if (turn != Turn::Polls) return moved();
    if (block.epoch != epoch_) {
      block.epoch = epoch_;
      block.polls = 0;
    }
    if (++block.polls == 2) ++stuck_;
    if (stuck_ == resident_) give_up(block, "every running block polls memory that nobody writes");
  }

  [[noreturn]] void give_up(Block& block, const std::string& why) {
    const size_t waiting = order_.size() - next_;
    const auto running = std::find_if(block.warps.begin(), block.warps.end(),
                                      [](const Warp& w) { return w.state == WarpState::Running; });
    const Site& site = (running == block.warps.end() ? block.warps.front() : *running).site;
    if (waiting) {
      fault(702, "co-residency",
            why + ", while " + std::to_string(waiting) +
                " blocks have not started: it depends on them running together",
            site, -1);
    }
    fault(702, "hang", why, site, -1);
  }

  void work(int slots, KernelCounters& counters) {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<Executed> executed(grid_.code.instructions.size());
    try {
      for (bool more = true; !stop_;) {
        while (more && int(blocks.size()) < slots) {
          uint32_t linear = 0;
          more = take(&linear);
          if (!more) break;
          if (spare_.empty()) spare_.push_back(std::make_unique<Block>());
          blocks.push_back(std::move(spare_.back()));
          spare_.pop_back();
          start_block(*blocks.back(), grid_, linear, counters);
        }
        if (blocks.empty()) break;
        for (size_t n = 0; n < blocks.size() && !stop_;) {
          Block& block = *blocks[n];
          const Turn turn = run_turn(block);
          if (turn != Turn::Ran) note(block, turn);
          if (block.steps > limit_) {
            const std::lock_guard lock(mutex_);
            give_up(block, "a block has run " + std::to_string(block.steps) + " warp instructions");
          }
          if (turn != Turn::Done) {
            ++n;
            continue;
          }
          finish_block(block, counters);
          spare_.push_back(std::move(blocks[n]));
          blocks.erase(blocks.begin() + std::ptrdiff_t(n));
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
    for (auto* pool : {&blocks, &spare_}) {
      for (const auto& block : *pool) {
        for (size_t i = 0; i < block->executed.size() && i < executed.size(); ++i) {
          executed[i].warps += block->executed[i].warps;
          executed[i].lanes += block->executed[i].lanes;
        }
        block->executed.clear();
        block->memory.reset();
      }
    }
    std::vector<uint64_t> warps(grid_.code.opcodes.size());
    for (size_t i = 0; i < executed.size(); ++i) {
      warps[grid_.code.opcode_of[i]] += executed[i].warps;
      counters.lane_instructions += executed[i].lanes;
    }
    for (size_t n = 0; n < warps.size(); ++n) {
      if (warps[n]) counters.instructions[grid_.code.opcodes[n]] += warps[n];
    }
  }

  static thread_local std::vector<std::unique_ptr<Block>> spare_;
  Grid& grid_;
  std::mutex mutex_;
  std::vector<uint32_t> order_;
  size_t next_ = 0;
  int resident_ = 0, stuck_ = 0;
  uint64_t epoch_ = 1, limit_ = 0;
  std::atomic<bool> stop_ = false;
  std::exception_ptr failure_;
};
thread_local std::vector<std::unique_ptr<Block>> Execution::spare_;
}  // namespace

Footprint run(const Launch& launch) {
  const Code& code = static_cast<const Code&>(*launch.kernel);
  GridShape shape{code.name.c_str(),
                  launch.device,
                  {launch.grid[0], launch.grid[1], launch.grid[2]},
                  {launch.block[0], launch.block[1], launch.block[2]},
                  code.static_shared,
                  launch.dynamic_shared,
                  code.dynamic_alignment,
                  code.local_bytes,
                  launch.id};
  Grid grid{launch, code, mix(config().seed), config().jitter, begin_grid(shape)};
  Execution(grid).run();
  end_grid(*grid.memory);
  return {written_pages(*grid.memory), read_pages(*grid.memory)};
}
}  // namespace soft
