// Allocation of device and of pinned host memory, and what a pointer is.
#include <cmath>
#include <cstdlib>
#include <thread>

#include "config.hpp"
#include "driver.hpp"
#include "findings.hpp"

using namespace soft;

namespace {

constexpr size_t kPage = 4096;

// Work that still refers to this memory: freeing it now is the caller's mistake, which a driver may or may not mend.
void check_in_flight(Call& call, uint64_t base, uint64_t bytes, bool host) {
  for (const OperationPtr& operation : driver().queue.pending()) {
    for (const Range& range : ranges(operation->work)) {
      if (range.host != host || range.address >= base + bytes || base >= range.address + range.bytes) continue;
      finding("free-in-flight", "memory was freed while work that refers to it had not run",
              std::string(call.name) + ": " + describe(operation->work) + " from " + operation->origin);
      driver().queue.drain(call);
      return;
    }
  }
}

// Pinning takes its time where the knob says so; other threads' calls go on meanwhile.
void pin(Call& call, uint64_t bytes) {
  const double seconds = config().pin_seconds_per_gb * static_cast<double>(bytes) / 1e9;
  if (seconds <= 0) return;
  call.lock.unlock();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  call.lock.lock();
}

int allocate_pinned(const char* name, void** out, size_t bytes, unsigned flags) {
  return call(name, kContext | kUnsafe, [&](Call& call) -> int {
    require(out != nullptr && bytes > 0 && flags <= 7, kInvalidValue);
    pin(call, bytes);
    void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    require(memory != nullptr, kOutOfMemory);
    driver().pinned[reinterpret_cast<uint64_t>(memory)] = HostBlock{bytes, false, &call.context()};
    *out = memory;
    return kSuccess;
  });
}

int release_pinned(const char* name, void* pointer, bool registered, int otherwise) {
  return call(name, kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    Driver& state = driver();
    const auto found = state.pinned.find(reinterpret_cast<uint64_t>(pointer));
    require(found != state.pinned.end() && found->second.registered == registered, otherwise);
    check_in_flight(call, found->first, found->second.bytes, true);
    if (!registered) std::free(pointer);
    state.pinned.erase(found);
    return state.sticky;
  });
}
}  // namespace

SOFT_API int cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call("cuMemGetInfo", kContext, [&](Call& call) -> int {
    const int64_t taken = config().free_memory_off + config().free_memory_drift * (driver().memory_questions++);
    const int64_t left = static_cast<int64_t>(free_bytes(call.context().device)) - taken;
    if (free != nullptr) *free = left < 0 ? 0 : left;
    if (total != nullptr) *total = config().memory_bytes;
    return kSuccess;
  });
}

SOFT_API int cuMemAlloc_v2(DevicePointer* out, size_t bytes) {
  return call("cuMemAlloc", kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    *out = allocate_block(call.context(), bytes, call.name);
    return kSuccess;
  });
}

SOFT_API int cuMemFree_v2(DevicePointer pointer) {
  return call("cuMemFree", kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    if (pointer == 0) return kSuccess;
    Driver& state = driver();
    const auto found = state.memory.find(pointer);
    require(found != state.memory.end(), kInvalidValue);
    check_in_flight(call, pointer, found->second.bytes, false);
    if (state.sticky == 0) release_block(pointer);
    return state.sticky;
  });
}

SOFT_API int cuMemAllocAsync(DevicePointer* out, size_t bytes, void* handle) {
  return call("cuMemAllocAsync", kContext | kIdle, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    Stream& stream = stream_of(call, handle);
    if (stream.capture != nullptr) unsupported("cuMemAllocAsync inside a capture: memory nodes");
    *out = allocate_block(*stream.context, bytes, call.name);
    return kSuccess;
  });
}

SOFT_API int cuMemFreeAsync(DevicePointer pointer, void* handle) {
  return call("cuMemFreeAsync", kContext, [&](Call& call) -> int {
    Stream& stream = stream_of(call, handle);
    if (stream.capture != nullptr) unsupported("cuMemFreeAsync inside a capture: memory nodes");
    require(driver().memory.count(pointer) != 0, kInvalidValue);
    enqueue(call, stream, FreeWork{pointer});
    return kSuccess;
  });
}

SOFT_API int cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer pointer) {
  return call("cuMemGetAddressRange", kContext, [&](Call&) -> int {
    const Allocation* allocation = find_allocation(pointer);
    require(allocation != nullptr, kNotFound);
    if (base != nullptr) *base = allocation->base;
    if (bytes != nullptr) *bytes = allocation->bytes;
    return kSuccess;
  });
}

SOFT_API int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  return allocate_pinned("cuMemHostAlloc", out, bytes, flags);
}
SOFT_API int cuMemAllocHost_v2(void** out, size_t bytes) { return allocate_pinned("cuMemAllocHost", out, bytes, 0); }
SOFT_API int cuMemFreeHost(void* pointer) { return release_pinned("cuMemFreeHost", pointer, false, kInvalidValue); }

SOFT_API int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return call("cuMemHostRegister", kContext | kUnsafe, [&](Call& call) -> int {
    require(pointer != nullptr && bytes > 0 && flags <= 15, kInvalidValue);
    require(config().host_register_error == 0, config().host_register_error);
    const auto address = reinterpret_cast<uint64_t>(pointer);
    for (const auto& [base, block] : driver().pinned) {
      require(base >= address + bytes || address >= base + block.bytes, kHostMemoryAlreadyRegistered);
    }
    pin(call, bytes);
    driver().pinned[address] = HostBlock{bytes, true, &call.context()};
    return kSuccess;
  });
}
SOFT_API int cuMemHostUnregister(void* pointer) {
  return release_pinned("cuMemHostUnregister", pointer, true, kHostMemoryNotRegistered);
}

SOFT_API int cuMemHostGetFlags(unsigned* flags, void* pointer) {
  return call("cuMemHostGetFlags", kContext, [&](Call&) -> int {
    require(flags != nullptr && is_pinned(reinterpret_cast<uint64_t>(pointer), 1), kInvalidValue);
    *flags = 0;
    return kSuccess;
  });
}

SOFT_API int cuPointerGetAttribute(void* out, int number, DevicePointer pointer) {
  return call("cuPointerGetAttribute", kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    const Allocation* allocation = find_allocation(pointer);
    const bool pinned = is_pinned(pointer, 1);
    require(allocation != nullptr || pinned, kInvalidValue);
    uint64_t base = 0;
    const DeviceBlock* block = find_block(pointer, &base);
    switch (number) {
      case 1: *static_cast<void**>(out) = block == nullptr ? nullptr : block->context; return kSuccess;
      case 2: *static_cast<int*>(out) = allocation != nullptr ? 2 : 1; return kSuccess;  // device, host
      case 3: *static_cast<uint64_t*>(out) = pointer; return kSuccess;
      case 8: *static_cast<int*>(out) = 0; return kSuccess;  // managed
      case 9: *static_cast<int*>(out) = allocation != nullptr ? allocation->device : 0; return kSuccess;
      case 11:
        require(allocation != nullptr, kInvalidValue);
        *static_cast<uint64_t*>(out) = allocation->base;
        return kSuccess;
      case 12:
        require(allocation != nullptr, kInvalidValue);
        *static_cast<size_t*>(out) = allocation->bytes;
        return kSuccess;
      default: unsupported("cuPointerGetAttribute " + std::to_string(number));
    }
  });
}
