// What each compute capability is like: the figures that attributes, launch limits and occupancy come from.
#pragma once
#include <cstdint>
#include <optional>

namespace soft {

struct Profile {
  int capability;
  const char* name;
  int shared_per_block_optin;        // bytes
  int shared_per_multiprocessor;     // bytes
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int l2_bytes;
  int persisting_l2_bytes;
  int bus_bits;
  int memory_khz, clock_khz;
  int async_engines;
  int double_ratio;                  // single to double precision
  int pci_device;
  bool ecc;
};

constexpr int kRegisters = 65536;              // of a multiprocessor, and the most of a block
constexpr int kRegisterUnit = 256;             // a warp's registers are allocated by these
constexpr int kWarpUnit = 4;                   // and warps by these
constexpr int kSharedUnit = 128, kSharedReserved = 1024;  // of each block, since 8.0
constexpr uint32_t kSharedDefault = 48 << 10;  // what a block gets without asking

const Profile& profile();  // of the configured capability; where that is unknown, of the newest before it
int multiprocessors();
std::optional<int> attribute(int card_number, int number);  // none: no such attribute

// Registers that a block takes, allocation granularity included.
int block_registers(int registers_per_thread, int threads);
int active_blocks(int registers_per_thread, int threads, uint64_t shared_bytes);
}  // namespace soft
