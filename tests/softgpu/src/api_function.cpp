// What a function is like: attributes, parameters, occupancy.
#include <algorithm>

#include "api_launch.hpp"
#include "config.hpp"
#include "driver.hpp"
#include "driver_profile.hpp"

using namespace soft;

namespace {

enum Attribute : int {
  kMaxThreadsPerBlock,
  kSharedBytes,
  kConstBytes,
  kLocalBytes,
  kRegistersPerThread,
  kPtxVersion,
  kBinaryVersion,
  kCacheModeCa,
  kMaxDynamicShared,
  kCarveout,
  kAttributes
};

int get(const Function& function, int number) {
  const Kernel& kernel = *function.kernel;
  switch (number) {
    case kMaxThreadsPerBlock: return static_cast<int>(kernel.max_threads);
    case kSharedBytes: return static_cast<int>(kernel.static_shared);
    case kConstBytes: return 0;
    case kLocalBytes: return static_cast<int>(kernel.local_bytes);
    case kRegistersPerThread: return function.registers;
    case kPtxVersion: return function.code->target;
    case kBinaryVersion: return config().capability;
    case kCacheModeCa: return 0;
    case kMaxDynamicShared: return static_cast<int>(function.max_dynamic_shared);
    case kCarveout: return -1;  // no preference
    default:
      require(number >= 0 && number <= 15, kInvalidValue);  // of clusters, which there are none of
      return 0;
  }
}

void set(Function& function, int number, int value) {
  if (number == kMaxDynamicShared) {
    require(value >= 0 && static_cast<uint32_t>(value) <= max_dynamic_shared(function), kInvalidValue);
    function.max_dynamic_shared = value;
  } else {
    require(number == kCarveout && value >= -1 && value <= 100, kInvalidValue);
  }
}

int get_call(const char* name, int* value, int number, void* handle) {
  return call(name, kContext, [&](Call&) -> int {
    require(value != nullptr, kInvalidValue);
    const auto function = function_of(handle);
    function->warm = true;  // asking loads it
    *value = get(*function, number);
    return kSuccess;
  });
}

int set_call(const char* name, int number, int value, void* handle) {
  return call(name, kContext | kUnsafe, [&](Call&) -> int {
    const auto function = function_of(handle);
    function->warm = true;
    set(*function, number, value);
    return kSuccess;
  });
}

int name_call(const char* name, const char** out, void* handle) {
  return call(name, kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = function_of(handle)->kernel->name.c_str();
    return kSuccess;
  });
}

int parameter_call(const char* name, void* handle, size_t index, size_t* offset, size_t* bytes) {
  return call(name, kContext, [&](Call&) -> int {
    const auto& parameters = function_of(handle)->kernel->parameters;
    require(offset != nullptr && index < parameters.size(), kInvalidValue);
    *offset = parameters[index].offset;
    if (bytes != nullptr) *bytes = parameters[index].bytes;
    return kSuccess;
  });
}

int occupancy(const Function& function, int block, size_t dynamic_shared) {
  require(block > 0 && block <= 1024, kInvalidValue);
  const int most = static_cast<int>(function.kernel->max_threads);
  if (block > most || dynamic_shared > function.max_dynamic_shared) return 0;
  return active_blocks(function.registers, block, function.kernel->static_shared + dynamic_shared);
}
}  // namespace

SOFT_API int cuFuncGetAttribute(int* value, int number, void* function) {
  return get_call("cuFuncGetAttribute", value, number, function);
}
SOFT_API int cuFuncSetAttribute(void* function, int number, int value) {
  return set_call("cuFuncSetAttribute", number, value, function);
}
SOFT_API int cuKernelGetAttribute(int* value, int number, void* kernel, int) {
  return get_call("cuKernelGetAttribute", value, number, kernel);
}
SOFT_API int cuKernelSetAttribute(int number, int value, void* kernel, int) {
  return set_call("cuKernelSetAttribute", number, value, kernel);
}
SOFT_API int cuFuncGetName(const char** out, void* function) { return name_call("cuFuncGetName", out, function); }
SOFT_API int cuKernelGetName(const char** out, void* kernel) { return name_call("cuKernelGetName", out, kernel); }
SOFT_API int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
  return parameter_call("cuFuncGetParamInfo", function, index, offset, bytes);
}
SOFT_API int cuKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* bytes) {
  return parameter_call("cuKernelGetParamInfo", kernel, index, offset, bytes);
}

SOFT_API int cuFuncSetCacheConfig(void* function, int) {
  return call("cuFuncSetCacheConfig", kContext, [&](Call&) -> int {
    function_of(function);
    return kSuccess;
  });
}

SOFT_API int cuFuncGetModule(void** out, void* function) {
  return call("cuFuncGetModule", kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = function_of(function)->module;
    return kSuccess;
  });
}

SOFT_API int cuFuncIsLoaded(int* state, void* function) {
  return call("cuFuncIsLoaded", kContext, [&](Call&) -> int {
    require(state != nullptr, kInvalidValue);
    *state = function_of(function)->warm;
    return kSuccess;
  });
}

SOFT_API int cuFuncLoad(void* function) {
  return call("cuFuncLoad", kContext | kUnsafe, [&](Call&) -> int {
    function_of(function)->warm = true;
    return kSuccess;
  });
}

SOFT_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads,
                                                         size_t shared_bytes) {
  return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", kContext, [&](Call&) -> int {
    require(blocks != nullptr, kInvalidValue);
    *blocks = occupancy(*function_of(function), threads, shared_bytes);
    return kSuccess;
  });
}
SOFT_API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, void* function, int threads,
                                                                  size_t shared_bytes, unsigned flags) {
  if (flags > 1) return kInvalidValue;
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes);
}

SOFT_API int cuOccupancyMaxPotentialBlockSize(int* grid, int* block, void* handle, size_t (*shared_of)(int),
                                              size_t shared_bytes, int limit) {
  return call("cuOccupancyMaxPotentialBlockSize", kContext, [&](Call&) -> int {
    require(grid != nullptr && block != nullptr, kInvalidValue);
    const auto function = function_of(handle);
    const int most = std::min<int>(limit > 0 ? limit : 1024, function->kernel->max_threads);
    int best_threads = 0;
    for (int threads = most / 32 * 32; threads > 0; threads -= 32) {
      const int blocks = occupancy(*function, threads, shared_of != nullptr ? shared_of(threads) : shared_bytes);
      if (blocks * threads <= best_threads) continue;
      best_threads = blocks * threads;
      *block = threads;
      *grid = blocks * multiprocessors();
    }
    return kSuccess;
  });
}

SOFT_API int cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, void* handle, int blocks, int threads) {
  return call("cuOccupancyAvailableDynamicSMemPerBlock", kContext, [&](Call&) -> int {
    require(bytes != nullptr && blocks > 0 && threads > 0, kInvalidValue);
    const auto function = function_of(handle);
    require(occupancy(*function, threads, 0) >= blocks, kInvalidValue);
    const int share = profile().shared_per_multiprocessor / blocks / kSharedUnit * kSharedUnit - kSharedReserved;
    const int most = std::min<int>(share, profile().shared_per_block_optin);
    *bytes = std::max(0, most - static_cast<int>(function->kernel->static_shared));
    return kSuccess;
  });
}
