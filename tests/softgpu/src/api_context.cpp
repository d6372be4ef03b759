// The current context of a thread, its limits and peers, and waiting for all of its work.
#include <iterator>

#include "config.hpp"
#include "counters.hpp"
#include "driver.hpp"

using namespace soft;

namespace {

size_t& limit_of(Context& context, int number) {
  require(number >= 0 && number < static_cast<int>(std::size(context.limits)), kUnsupportedLimit);
  return context.limits[number];
}

Context* current() {
  const auto& stack = thread_state().stack;
  return stack.empty() ? nullptr : stack.back();
}
}  // namespace

SOFT_API int cuCtxSetCurrent(void* handle) {
  return call("cuCtxSetCurrent", kInitialized, [&](Call&) -> int {
    auto& stack = thread_state().stack;
    if (handle != nullptr) {
      Context& context = driver().contexts.get(handle, kInvalidContext);
      if (!stack.empty()) stack.pop_back();
      stack.push_back(&context);
    } else if (!stack.empty()) {
      stack.pop_back();
    }
    return kSuccess;
  });
}

SOFT_API int cuCtxGetCurrent(void** out) {
  return call("cuCtxGetCurrent", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = current();
    return kSuccess;
  });
}

SOFT_API int cuCtxPushCurrent_v2(void* handle) {
  return call("cuCtxPushCurrent", kInitialized, [&](Call&) -> int {
    thread_state().stack.push_back(&driver().contexts.get(handle, kInvalidContext));
    return kSuccess;
  });
}

SOFT_API int cuCtxPopCurrent_v2(void** out) {
  return call("cuCtxPopCurrent", kContext, [&](Call&) -> int {
    if (out != nullptr) *out = current();
    thread_state().stack.pop_back();
    return kSuccess;
  });
}

SOFT_API int cuCtxGetDevice(int* device) {
  return call("cuCtxGetDevice", kContext, [&](Call& call) -> int {
    require(device != nullptr, kInvalidValue);
    *device = call.context().device;
    return kSuccess;
  });
}

SOFT_API int cuCtxGetFlags(unsigned* flags) {
  return call("cuCtxGetFlags", kContext, [&](Call& call) -> int {
    require(flags != nullptr, kInvalidValue);
    *flags = call.context().flags;
    return kSuccess;
  });
}

SOFT_API int cuCtxGetId(void* handle, uint64_t* id) {
  return call("cuCtxGetId", kInitialized, [&](Call&) -> int {
    require(id != nullptr, kInvalidValue);
    Context* context = handle == nullptr ? current() : driver().contexts.find(handle);
    require(context != nullptr, kInvalidContext);
    *id = context->id;
    return kSuccess;
  });
}

SOFT_API int cuCtxGetApiVersion(void* handle, unsigned* version) {
  return call("cuCtxGetApiVersion", kInitialized, [&](Call&) -> int {
    require(version != nullptr, kInvalidValue);
    if (handle != nullptr) driver().contexts.get(handle, kInvalidContext);
    *version = 3020;
    return kSuccess;
  });
}

SOFT_API int cuCtxSynchronize() {
  return call("cuCtxSynchronize", kContext | kUnsafe, [](Call& call) -> int {
    for (const auto& capture : driver().captures) {  // relaxed as well: it would wait for what never runs
      if (capture->origin->context != &call.context()) continue;
      invalidate(*capture);
      return kCaptureUnsupported;
    }
    driver_counters().synchronizations++;
    driver().queue.drain(call);
    return driver().sticky;
  });
}

SOFT_API int cuCtxGetLimit(size_t* value, int number) {
  return call("cuCtxGetLimit", kContext, [&](Call& call) -> int {
    require(value != nullptr, kInvalidValue);
    *value = limit_of(call.context(), number);
    return kSuccess;
  });
}

SOFT_API int cuCtxSetLimit(int number, size_t value) {
  return call("cuCtxSetLimit", kContext, [&](Call& call) -> int {
    limit_of(call.context(), number) = value;
    return kSuccess;
  });
}

SOFT_API int cuCtxGetCacheConfig(int* value) {
  return call("cuCtxGetCacheConfig", kContext, [&](Call&) -> int {
    require(value != nullptr, kInvalidValue);
    *value = 0;  // no preference: shared memory is carved out by need
    return kSuccess;
  });
}

SOFT_API int cuCtxSetCacheConfig(int) {
  return call("cuCtxSetCacheConfig", kContext, [](Call&) -> int { return kSuccess; });
}

SOFT_API int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", kContext, [&](Call&) -> int {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return kSuccess;
  });
}

SOFT_API int cuCtxResetPersistingL2Cache() {
  return call("cuCtxResetPersistingL2Cache", kContext, [](Call&) -> int { return kSuccess; });
}

SOFT_API int cuCtxEnablePeerAccess(void* handle, unsigned flags) {
  return call("cuCtxEnablePeerAccess", kContext, [&](Call& call) -> int {
    require(flags == 0, kInvalidValue);
    Context& context = call.context();
    const int peer = driver().contexts.get(handle, kInvalidContext).device;
    require(peer != context.device, kInvalidDevice);
    require(config().peer_access && !config().mig, kPeerAccessUnsupported);
    require(context.peers.insert(peer).second, kPeerAccessAlreadyEnabled);
    set_peer_access(context.device, peer, true);
    return kSuccess;
  });
}

SOFT_API int cuCtxDisablePeerAccess(void* handle) {
  return call("cuCtxDisablePeerAccess", kContext, [&](Call& call) -> int {
    const int peer = driver().contexts.get(handle, kInvalidContext).device;
    require(call.context().peers.erase(peer) == 1, kPeerAccessNotEnabled);
    set_peer_access(call.context().device, peer, false);
    return kSuccess;
  });
}

SOFT_API int cuProfilerStart() {
  return call("cuProfilerStart", kContext, [](Call&) -> int { return kSuccess; });
}
SOFT_API int cuProfilerStop() {
  return call("cuProfilerStop", kContext, [](Call&) -> int { return kSuccess; });
}
