// Copies and fills: which of them hold the host up, and which only look as if they did (driver API, "API
// synchronization behavior").
#include "config.hpp"
#include "driver.hpp"
#include "findings.hpp"

using namespace soft;

namespace {

enum class Form { Synchronous, Asynchronous };

Place device_place(DevicePointer address, uint64_t pitch = 0) { return {address, pitch, false, false}; }
Place host_place(const void* pointer, uint64_t pitch = 0) {
  return {reinterpret_cast<uint64_t>(pointer), pitch, true, false};
}
Place unified_place(uint64_t address, uint64_t pitch = 0) {
  return {address, pitch, !in_device_memory(address), false};
}

void find_pinned(Place& place, uint64_t width, uint64_t rows) {
  if (place.host) place.pinned = is_pinned(place.address, (rows - 1) * place.pitch + width);
}

int device_of(const Place& place) { return static_cast<int>((place.address - kDeviceBase) / kDeviceStride); }

void check_strict(Call& call, const CopyWork& copy) {
  if (!config().strict_copies) return;
  finding("synchronous-copy", "the copy holds the host up: use pinned memory and an asynchronous call",
          std::string(call.name) + ": " + describe(Work(copy)));
}

// A pageable source is staged at once, so no form of the call need wait: the bytes arrive in the stream's
// order, which for the synchronous form is the null stream's. Into pageable memory it returns when all is there.
int copy(Call& call, CopyWork work, Form form, void* handle) {
  Stream& stream = form == Form::Synchronous ? call.context().legacy : stream_of(call, handle);
  if (form == Form::Synchronous) {
    check_implicit(stream);
    require(!capture_forbids(call), kCaptureUnsupported);
  }
  if (work.width == 0 || work.rows == 0) return kSuccess;
  find_pinned(work.to, work.width, work.rows);
  find_pinned(work.from, work.width, work.rows);
  call.wait_idle();
  check(work);
  if (!work.to.host && !work.from.host && device_of(work.to) != device_of(work.from)) {
    const auto& peers = call.context().peers;
    work.dropped =
        config().peer_writes_dropped && (peers.count(device_of(work.to)) || peers.count(device_of(work.from)));
  }
  const bool pageable = (work.from.host && !work.from.pinned) || (work.to.host && !work.to.pinned);
  const bool through_host = work.from.host || work.to.host;
  const bool holds_up = through_host && (form == Form::Synchronous || pageable);
  if (stream.capture != nullptr) {
    enqueue(call, stream, std::move(work));
    return kSuccess;
  }
  work.holds_up = holds_up;
  if (holds_up) check_strict(call, work);
  const bool waits = holds_up && !(work.from.host && !work.from.pinned && !work.to.host);
  if (!waits && pageable) {
    stage(work);
    work.looks_done = form == Form::Synchronous;
  }
  const OperationPtr operation = enqueue(call, stream, std::move(work));
  if (waits) driver().queue.wait(call, operation);
  return driver().sticky;
}

int copy_call(const char* name, Place to, Place from, size_t bytes, Form form, void* stream = nullptr) {
  return call(name, kContext, [&](Call& call) -> int { return copy(call, {to, from, bytes}, form, stream); });
}

int fill_call(const char* name, DevicePointer to, size_t pitch, unsigned value, int element, size_t width,
              size_t rows, Form form, void* handle = nullptr) {
  return call(name, kContext, [&](Call& call) -> int {
    Stream& stream = form == Form::Synchronous ? call.context().legacy : stream_of(call, handle);
    if (form == Form::Synchronous) {
      check_implicit(stream);
      require(!capture_forbids(call), kCaptureUnsupported);
    }
    const FillWork fill{to, pitch, value, element, width, rows};
    check(fill);
    if (width == 0 || rows == 0) return kSuccess;
    enqueue(call, stream, fill);  // the synchronous form does not wait either
    return kSuccess;
  });
}

Place place_2d(MemoryType type, const void* host, DevicePointer device, size_t pitch, size_t x, size_t y) {
  const uint64_t offset = y * pitch + x;
  switch (type) {
    case MemoryType::kHost: return host_place(static_cast<const uint8_t*>(host) + offset, pitch);
    case MemoryType::kDevice: return device_place(device + offset, pitch);
    case MemoryType::kUnified: return unified_place(device + offset, pitch);
    default: unsupported("copies from or to arrays");
  }
}

int copy_2d(const char* name, const Copy2D* given, Form form, void* stream = nullptr) {
  return call(name, kContext, [&](Call& call) -> int {
    require(given != nullptr, kInvalidValue);
    const Copy2D& c = *given;
    CopyWork work{place_2d(c.to_type, c.to_host, c.to_device, c.to_pitch, c.to_x, c.to_y),
                  place_2d(c.from_type, c.from_host, c.from_device, c.from_pitch, c.from_x, c.from_y), c.width,
                  c.height};
    return copy(call, std::move(work), form, stream);
  });
}
}  // namespace

namespace soft {
// The copy that a graph's node describes; one slice only.
CopyWork copy_of_node(const Copy3D& c) {
  if (c.depth != 1) unsupported("copy nodes of more than one slice");
  const size_t to_row = c.to_y + c.to_z * c.to_height, from_row = c.from_y + c.from_z * c.from_height;
  CopyWork work{place_2d(c.to_type, c.to_host, c.to_device, c.to_pitch, c.to_x, to_row),
                place_2d(c.from_type, c.from_host, c.from_device, c.from_pitch, c.from_x, from_row), c.width,
                c.height};
  require(work.width > 0 && work.rows > 0, kInvalidValue);
  find_pinned(work.to, work.width, work.rows);
  find_pinned(work.from, work.width, work.rows);
  check(work);
  return work;
}
}  // namespace soft

SOFT_API int cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
  return copy_call("cuMemcpyHtoD", device_place(to), host_place(from), bytes, Form::Synchronous);
}
SOFT_API int cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  return copy_call("cuMemcpyDtoH", host_place(to), device_place(from), bytes, Form::Synchronous);
}
SOFT_API int cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t bytes) {
  return copy_call("cuMemcpyDtoD", device_place(to), device_place(from), bytes, Form::Synchronous);
}
SOFT_API int cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyHtoDAsync", device_place(to), host_place(from), bytes, Form::Asynchronous, stream);
}
SOFT_API int cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyDtoHAsync", host_place(to), device_place(from), bytes, Form::Asynchronous, stream);
}
SOFT_API int cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyDtoDAsync", device_place(to), device_place(from), bytes, Form::Asynchronous, stream);
}
SOFT_API int cuMemcpy(DevicePointer to, DevicePointer from, size_t bytes) {
  return copy_call("cuMemcpy", unified_place(to), unified_place(from), bytes, Form::Synchronous);
}
SOFT_API int cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyAsync", unified_place(to), unified_place(from), bytes, Form::Asynchronous, stream);
}
SOFT_API int cuMemcpyPeer(DevicePointer to, void*, DevicePointer from, void*, size_t bytes) {
  return copy_call("cuMemcpyPeer", device_place(to), device_place(from), bytes, Form::Synchronous);
}
SOFT_API int cuMemcpyPeerAsync(DevicePointer to, void*, DevicePointer from, void*, size_t bytes, void* stream) {
  return copy_call("cuMemcpyPeerAsync", device_place(to), device_place(from), bytes, Form::Asynchronous, stream);
}
SOFT_API int cuMemcpy2D_v2(const Copy2D* copy) { return copy_2d("cuMemcpy2D", copy, Form::Synchronous); }
SOFT_API int cuMemcpy2DUnaligned_v2(const Copy2D* copy) {
  return copy_2d("cuMemcpy2DUnaligned", copy, Form::Synchronous);
}
SOFT_API int cuMemcpy2DAsync_v2(const Copy2D* copy, void* stream) {
  return copy_2d("cuMemcpy2DAsync", copy, Form::Asynchronous, stream);
}

SOFT_API int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
  return fill_call("cuMemsetD8", to, 0, value, 1, count, 1, Form::Synchronous);
}
SOFT_API int cuMemsetD16_v2(DevicePointer to, unsigned short value, size_t count) {
  return fill_call("cuMemsetD16", to, 0, value, 2, count, 1, Form::Synchronous);
}
SOFT_API int cuMemsetD32_v2(DevicePointer to, unsigned value, size_t count) {
  return fill_call("cuMemsetD32", to, 0, value, 4, count, 1, Form::Synchronous);
}
SOFT_API int cuMemsetD8Async(DevicePointer to, unsigned char value, size_t count, void* stream) {
  return fill_call("cuMemsetD8Async", to, 0, value, 1, count, 1, Form::Asynchronous, stream);
}
SOFT_API int cuMemsetD16Async(DevicePointer to, unsigned short value, size_t count, void* stream) {
  return fill_call("cuMemsetD16Async", to, 0, value, 2, count, 1, Form::Asynchronous, stream);
}
SOFT_API int cuMemsetD32Async(DevicePointer to, unsigned value, size_t count, void* stream) {
  return fill_call("cuMemsetD32Async", to, 0, value, 4, count, 1, Form::Asynchronous, stream);
}
SOFT_API int cuMemsetD2D8_v2(DevicePointer to, size_t pitch, unsigned char value, size_t width, size_t rows) {
  return fill_call("cuMemsetD2D8", to, pitch, value, 1, width, rows, Form::Synchronous);
}
SOFT_API int cuMemsetD2D32_v2(DevicePointer to, size_t pitch, unsigned value, size_t width, size_t rows) {
  return fill_call("cuMemsetD2D32", to, pitch, value, 4, width, rows, Form::Synchronous);
}
