// Device addresses and the host bytes behind them: allocations, guard gaps, poison.
//
// Each device owns a terabyte of addresses and an equally large host reservation that costs memory only where it is
// touched; so an address becomes a host pointer by one addition. What nobody has written reads as NaN: a page of 4 KB
// is poisoned when it is first touched.
//
//   ... | 256 x odd | allocation, own pages | gap of 1 MB or more | 256 x odd | next allocation | ...
#pragma once
#include <string>

#include "memory.hpp"

namespace soft {

constexpr int kMaxDevices = 16;
constexpr uint32_t kPageShift = 12, kPageBytes = 1u << kPageShift;
constexpr uint8_t kPoison = 0xFF;  // NaN in every float format, -1 as an integer

struct Reservation {
  uint8_t* bytes = nullptr;    // kDeviceStride of them
  uint8_t* touched = nullptr;  // one a page: it holds data or poison
};
extern Reservation reservations[kMaxDevices];

inline int device_of(uint64_t address) { return int((address - kDeviceBase) >> 40); }
inline bool is_device_address(uint64_t address) {
  return address >= kDeviceBase && address < kDeviceBase + kMaxDevices * kDeviceStride;
}

void poison_page(Reservation& of, uint64_t page);

// The host bytes of a range that lies in one live allocation; poisoned where they are touched for the first time.
inline uint8_t* host_bytes(uint64_t address, uint64_t bytes) {
  Reservation& of = reservations[device_of(address)];
  const uint64_t offset = address & (kDeviceStride - 1);
  for (uint64_t page = offset >> kPageShift; page <= (offset + bytes - 1) >> kPageShift; ++page)
    if (!__atomic_load_n(&of.touched[page], __ATOMIC_ACQUIRE)) [[unlikely]] poison_page(of, page);
  return of.bytes + offset;
}

// A live allocation as accesses look it up; valid while `allocation_generation` stays.
struct Window {
  uint64_t base = 0, end = 0;
  int device = -1;
};
bool find_window(uint64_t address, Window& window);
uint64_t allocation_generation();

bool peer_access_enabled(int device, int peer);
// Why `bytes` at `address` are no place to access: the nearest allocation, its tag and the distance.
struct Misplaced {
  const char* rule;  // "use-after-free" or "out-of-bounds"
  std::string what;
};
Misplaced explain_misplaced(uint64_t address, uint64_t bytes);

// Ranges that expect_zero has registered and that now hold something else, as text; empty where all is well.
std::vector<std::string> nonzero_counters();

std::string hex_address(uint64_t address);
}  // namespace soft
