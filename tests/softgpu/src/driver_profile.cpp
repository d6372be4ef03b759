// The table of cards, and the attributes and occupancy that follow from it (CUDA programming guide, technical
// specifications by compute capability; the boards' data sheets).
#include "driver_profile.hpp"

#include <algorithm>

#include "config.hpp"

namespace soft {
namespace {

constexpr int kKiB = 1 << 10, kMiB = 1 << 20;

constexpr Profile kProfiles[] = {
    {80, "NVIDIA A100-SXM4-80GB", 163 * kKiB, 164 * kKiB, 2048, 32, 40 * kMiB, 30 * kMiB, 5120, 1593000, 1410000, 3,
     2, 0x20b2, true},
    {86, "NVIDIA A10", 99 * kKiB, 100 * kKiB, 1536, 16, 6 * kMiB, 4608 * kKiB, 384, 6251000, 1695000, 2,
     32, 0x2236, true},
    {89, "NVIDIA L4", 99 * kKiB, 100 * kKiB, 1536, 24, 48 * kMiB, 33 * kMiB, 192, 6251000, 2040000, 2,
     64, 0x27b8, true},
    {90, "NVIDIA H200", 227 * kKiB, 228 * kKiB, 2048, 32, 60 * kMiB, 37 * kMiB, 6144, 3201000, 1980000, 3,
     2, 0x2335, true},
    {100, "NVIDIA B200", 227 * kKiB, 228 * kKiB, 2048, 32, 126 * kMiB, 79 * kMiB, 8192, 3996000, 1965000, 4,
     2, 0x2901, true},
    {120, "NVIDIA GeForce RTX 5090", 99 * kKiB, 100 * kKiB, 1536, 24, 96 * kMiB, 60 * kMiB, 512, 14001000, 2407000, 2,
     64, 0x2b85, false},
};

constexpr int kMigMultiprocessors = 14;

int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
}  // namespace

const Profile& profile() {
  const auto newer = std::find_if(std::begin(kProfiles), std::end(kProfiles),
                                  [](const Profile& one) { return one.capability > config().capability; });
  return newer == std::begin(kProfiles) ? *newer : *std::prev(newer);
}

int multiprocessors() { return config().mig ? std::min(config().sm_count, kMigMultiprocessors) : config().sm_count; }

int block_registers(int registers_per_thread, int threads) {
  const int warps = round_up((threads + 31) / 32, kWarpUnit);
  return warps * round_up(registers_per_thread * 32, kRegisterUnit);
}

int active_blocks(int registers_per_thread, int threads, uint64_t shared_bytes) {
  const Profile& card = profile();
  const int warps = (threads + 31) / 32;
  const int by_threads = card.threads_per_multiprocessor / 32 / warps;
  const int held = kRegisters / round_up(std::max(registers_per_thread, 1) * 32, kRegisterUnit);
  const int by_registers = held / kWarpUnit * kWarpUnit / warps;
  const uint64_t shared = (shared_bytes + kSharedReserved + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  const int by_shared = static_cast<int>(card.shared_per_multiprocessor / shared);
  return std::min({by_threads, by_registers, by_shared, card.blocks_per_multiprocessor});
}

// By the number of CUdevice_attribute. What is no figure of the card is 1 for "can" and 0 for "cannot".
std::optional<int> attribute(int card_number, int number) {
  const Profile& card = profile();
  const int newest = config().driver_version >= 13000 ? 147 : config().driver_version >= 12080 ? 143 : 137;
  if (number <= 0 || number > newest) return std::nullopt;
  switch (number) {
    case 1: case 2: case 3: return 1024;                    // threads of a block, x, y
    case 4: return 64;                                      // z
    case 5: return 0x7fffffff;                              // grid x
    case 6: case 7: return 65535;
    case 8: return kSharedDefault;
    case 9: return 64 * kKiB;                               // constant memory
    case 10: return 32;                                     // warp
    case 11: return 0x7fffffff;                             // pitch
    case 12: case 82: return kRegisters;                    // of a block, of a multiprocessor
    case 13: return card.clock_khz;
    case 14: case 30: return 512;                           // texture, surface alignment
    case 15: return 1;                                      // copies overlap kernels
    case 16: return multiprocessors();
    case 19: return 1;                                      // maps host memory
    case 21: case 22: case 55: case 56: return 131072;      // 1D, 2D textures and surfaces
    case 23: case 57: return 65536;
    case 24: case 25: case 26: case 58: case 59: case 60: return 16384;
    case 27: case 28: case 42: case 61: case 63: case 64: return 32768;
    case 29: case 43: case 62: case 65: return 2048;
    case 31: return 1;                                      // concurrent kernels
    case 32: return card.ecc;
    case 33: return 1 + card_number;                        // PCI bus
    case 36: return card.memory_khz;
    case 37: return card.bus_bits;
    case 38: return card.l2_bytes;
    case 39: return card.threads_per_multiprocessor;
    case 40: return card.async_engines;
    case 41: return 1;                                      // unified addressing
    case 51: return 32;                                     // texture pitch alignment
    case 75: return config().capability / 10;
    case 76: return config().capability % 10;
    case 78: case 79: case 80: return 1;                    // priorities, L1 for global and local
    case 81: return card.shared_per_multiprocessor;
    case 83: return 1;                                      // managed memory
    case 85: return card_number;                            // multi-GPU board group
    case 87: return card.double_ratio;
    case 89: case 90: case 91: return 1;                    // concurrent managed access, preemption, host pointers
    case 94: case 95: case 122: case 123: return 1;         // wait values, cooperative launch
    case 97: return card.shared_per_block_optin;
    case 98: return 0;
    case 99: return config().host_register_error == 0;
    case 102: case 103: return 1;                           // virtual memory, file handles
    case 106: return card.blocks_per_multiprocessor;
    case 108: return card.persisting_l2_bytes;
    case 109: return 128 * kMiB - 1;                        // access policy window
    case 110: case 112: case 113: case 114: case 115: case 116: return 1;
    case 111: return kSharedReserved;
    case 118: return 100;                                   // RDMA writes are ordered for their owner
    case 119: return 1;
    case 120: return card.capability >= 90;                 // clusters
    case 121: case 124: case 125: case 129: return 1;
    case 126: return card.capability >= 90 ? 4 : 1;         // memory synchronisation domains
    case 127: return card.capability >= 90;                 // tensor maps
    case 131: case 134: return -1;                          // NUMA nodes: none
    case 139: return card.pci_device << 16 | 0x10de;
    default: return 0;
  }
}
}  // namespace soft
