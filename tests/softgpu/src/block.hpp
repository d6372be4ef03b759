// A block as it runs: its warps take turns on one host thread, stop at barriers, and are watched for getting nowhere.
#pragma once
#include "warp.hpp"

namespace soft {
void start_block(Block& block, Grid& grid, uint32_t linear, KernelCounters& counters);
enum class Turn : uint8_t { Ran, Moved, Polls, Done };
// Gives each warp a turn. Now and then it looks closer: Moved, or Polls where every warp waits at a barrier or came
// back to the same place with the same registers.
Turn run_turn(Block& block);
void finish_block(Block& block, KernelCounters& counters);

// A warp's lanes reach a barrier. `count` 0: all threads that have not exited. The warp sleeps where `waits`, until
// the others are there.
void arrive(Block& block, Warp& warp, uint32_t barrier, uint32_t count, uint32_t mask, bool waits, bool reduces,
            uint32_t votes);
// Writes the result of bar.red to a warp that slept (exec_barrier.cpp).
void finish_reduction(Warp& warp, const Instruction& instruction, uint32_t mask, uint32_t true_count,
                      uint32_t threads);
}  // namespace soft
