// Device memory and every rule about it: where bytes lie, who may touch them when, and what an access costs.
//
// The machine computes 32 addresses and a mask and asks here; the driver allocates and copies here. The machine never
// touches device bytes itself.
//
//   0x0000_0000_0100_0000  shared window of generic addresses   (kSharedWindow + offset)
//   0x0000_0000_0200_0000  local window                          (kLocalWindow + offset, each lane its own)
//   (an address in the .shared or .local space itself is the offset alone, from 0)
//   0x0000_0500_0000_0000  device 0's memory, device d at + d * 2^40; so a truncated pointer is no address
//
// A device address is not a host address: a host that dereferences one crashes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config.hpp"
#include "counters.hpp"
#include "findings.hpp"

namespace soft {

constexpr int kLanes = 32;
constexpr uint64_t kSharedWindow = 0x01000000, kLocalWindow = 0x02000000, kWindowBytes = 0x01000000;
constexpr uint64_t kDeviceBase = 0x050000000000ull, kDeviceStride = 1ull << 40;

enum class Space : uint8_t { Generic, Global, Shared, Local, Const, Param };
enum class Order : uint8_t { Weak, Relaxed, Acquire, Release, AcqRel, SeqCst, Volatile };
enum class Scope : uint8_t { Cta, Gpu, Sys };
enum class AtomicOp : uint8_t { Add, Min, Max, And, Or, Xor, Exch, Cas, Inc, Dec };
enum class AtomicType : uint8_t { U32, S32, U64, S64, B32, B64, F16, F16x2, BF16, BF16x2, F32, F64 };

class BlockMemory;  // shared and local memory of one running block, its clocks, its asynchronous copies
class GridMemory;   // of one launch: who wrote which global byte, per-launch clocks

// One warp-wide access. `address` holds kLanes entries; lanes outside `mask` are not looked at.
struct Request {
  BlockMemory& block;
  const Site& site;
  uint32_t warp;   // in the block
  uint32_t mask;   // lanes that take part, predicated-off ones excluded
  const uint64_t* address;
  uint32_t bytes;  // of each lane: 1, 2, 4, 8 or 16 (vectors are one access of their whole width)
  Space space = Space::Generic;
  Order order = Order::Weak;
  Scope scope = Scope::Gpu;
  bool read_only = false;  // ld.global.nc
};

// --- allocation and host access (the driver) -------------------------------------------------------------------
struct Allocation { uint64_t base, bytes; int device; std::string tag; };
// 256-aligned and no more, poisoned with NaN; 0: out of memory.
uint64_t allocate(int device, uint64_t bytes, const std::string& tag);
bool release(uint64_t base);                                            // false: not the base of an allocation
const Allocation* find_allocation(uint64_t address);                    // null: none holds it
uint64_t free_bytes(int device);
// Host copies. False where the range is not inside one live allocation.
bool read_device(uint64_t address, void* out, uint64_t bytes);
bool write_device(uint64_t address, const void* from, uint64_t bytes);
bool copy_device(uint64_t to, uint64_t from, uint64_t bytes);
bool fill_device(uint64_t address, uint32_t value, int element_bytes, uint64_t count);
uint64_t hash_device(uint64_t address, uint64_t bytes);
void reset_memory();
// A kernel on `device` may touch `peer`'s memory from now on (cuCtxEnablePeerAccess), or no longer.
void set_peer_access(int device, int peer, bool enabled);
// Counters that must be zero when a grid ends (semaphores): registered by tests through softgpu_expect_zero.
void expect_zero(uint64_t address, uint64_t bytes);

// --- a launch (the machine) ------------------------------------------------------------------------------------
struct GridShape {
  const char* kernel;
  int device;
  uint32_t grid[3], block[3];
  uint32_t static_shared, dynamic_shared, dynamic_alignment, local_bytes;  // bytes; local per lane
  uint64_t launch_id;
};
// Where dynamic shared memory begins: past the static variables, with its declared alignment and no more.
constexpr uint32_t dynamic_shared_base(uint32_t static_shared, uint32_t alignment) {
  return alignment <= 1 ? static_shared : ((static_shared + alignment - 1) / alignment | 1) * alignment;
}
std::shared_ptr<GridMemory> begin_grid(const GridShape& shape);
void end_grid(GridMemory& grid);  // cross-launch bookkeeping; semaphores back at zero; may record findings
// The 4 KB pages (address >> 12, ascending) that the grid has written, and those it has read without writing them:
// what the driver compares to find work in flight together that shares writable bytes. Valid after end_grid.
const std::vector<uint64_t>& written_pages(const GridMemory& grid);
const std::vector<uint64_t>& read_pages(const GridMemory& grid);
std::unique_ptr<BlockMemory, void (*)(BlockMemory*)> begin_block(GridMemory& grid, uint32_t linear_block,
                                                                KernelCounters& counters);
void end_block(BlockMemory& block, const Site& site);  // drains; asynchronous copies left pending are a finding

// Loads fill `out` lane by lane, `bytes` each, contiguous by lane; lanes outside the mask are left alone.
void load(const Request& request, void* out);
void store(const Request& request, const void* from);
// `a` (and `b` for Cas) and `out` hold one value a lane, of the type's width; out null for red.
void atomic(const Request& request, AtomicOp op, AtomicType type, const void* a, const void* b, void* out);
// ldmatrix: lanes 8i..8i+7 give the row addresses of matrix i; out: [count][kLanes] 32-bit registers. stmatrix too.
void load_matrix(const Request& request, int count, bool transposed, uint32_t* out);
void store_matrix(const Request& request, int count, bool transposed, const uint32_t* from);
// cp.async: request.address are shared destinations, `source` global addresses; source_bytes null, or by lane (the
// rest is filled with zeros).
void async_copy(const Request& request, const uint64_t* source, const uint32_t* source_bytes);
void async_commit(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask);
// pending_groups ~0u: wait_all, what is not committed too.
void async_wait(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask, uint32_t pending_groups);

// Ordering events.
void fence(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask, Scope scope);  // membar.*, fence.*
void warp_sync(BlockMemory& block, uint32_t warp, uint32_t mask);                             // bar.warp.sync
// These lanes arrive at a barrier (0 to 15) and go on: whom it lets through knows what they did up to here.
void barrier_arrive(BlockMemory& block, uint32_t barrier, uint32_t warp, uint32_t mask);
// These lanes waited there and met: masks[warp], 0 where a warp did not.
void barrier_met(BlockMemory& block, uint32_t barrier, const uint32_t* masks, uint32_t warps);
uint32_t shared_size(const BlockMemory& block);  // static, the gap up to dynamic_shared_base, dynamic
}  // namespace soft
