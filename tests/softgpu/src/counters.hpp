// What the soft GPU measures: per kernel name, summed over launches until softgpu_reset.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace soft {

struct AccessCount {           // one kind of memory instruction
  uint64_t requests = 0;       // warp-wide instructions
  uint64_t bytes = 0;          // asked for by active lanes
  uint64_t sectors = 0;        // 32-byte sectors touched (global), or 4-byte-bank wavefronts (shared)
  uint64_t ideal = 0;          // the fewest that could carry those bytes: conflicts = sectors - ideal
};

// Shape of a static access site, so that tests can hold one load of a kernel to a figure.
struct SiteCount { std::string text, source; AccessCount count; };

struct KernelCounters {
  uint64_t launches = 0, blocks = 0, warps = 0;
  uint64_t replays = 0;                          // of the launches, those that were nodes of a graph
  // Warp instructions by opcode as written up to the types: "mma.sync", "ld.global".
  std::map<std::string, uint64_t> instructions;
  uint64_t lane_instructions = 0;                // active lanes summed: / (32 * instructions) is the convergence
  AccessCount global_load, global_store, shared_load, shared_store, local, async_copy, atomics;
  std::map<uint32_t, SiteCount> sites;           // by PTX line
  void add(const KernelCounters& other);
};

// Kept by each host thread during a launch and merged at its end.
void merge_counters(const std::string& kernel, const KernelCounters& counters);
struct DriverCounters {
  uint64_t launches = 0, graph_launches = 0, graph_kernel_nodes = 0, captures = 0, instantiations = 0;
  // Of copies and fills that have run, a graph's nodes at each replay.
  uint64_t h2d_bytes = 0, d2h_bytes = 0, d2d_bytes = 0, memsets = 0;
  uint64_t h2d_async_bytes = 0, d2h_async_bytes = 0;  // of these, by copies that did not hold the host up
  uint64_t allocations = 0, synchronizations = 0;
  std::map<std::string, uint64_t> calls = {};  // by function, those that passed the driver's own checks
};
DriverCounters& driver_counters();  // guarded by the driver's lock
std::string counters_json();        // {"driver": {...}, "calls": {"cuMemAlloc": n}, "kernels": {"name": {...}}}
void clear_counters();
}  // namespace soft
