// Modules and libraries, their functions and variables.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "api_launch.hpp"
#include "config.hpp"
#include "driver.hpp"
#include "driver_profile.hpp"
#include "findings.hpp"

using namespace soft;

namespace {

enum JitOption : int { kInfoBuffer = 3, kInfoBytes = 4, kErrorBuffer = 5, kErrorBytes = 6 };

// The caller's log buffers: options and values are parallel arrays, a value holds a pointer or, in place, a number.
class JitBuffers {
 public:
  JitBuffers(unsigned count, const int* options, void** values) : count_(count), options_(options), values_(values) {}
  void fill(const JitLog& log) {
    put(kInfoBuffer, kInfoBytes, log.info);
    put(kErrorBuffer, kErrorBytes, log.error);
  }

 private:
  void** value(int option) {
    for (unsigned index = 0; index < count_; index++) {
      if (options_[index] == option) return &values_[index];
    }
    return nullptr;
  }
  void put(int buffer_option, int bytes_option, const std::string& text) {
    void** buffer = value(buffer_option);
    void** bytes = value(bytes_option);
    if (buffer == nullptr || *buffer == nullptr || bytes == nullptr) return;
    const auto room = reinterpret_cast<uintptr_t>(*bytes) & 0xffffffff;
    if (room == 0) return;
    const size_t length = std::min<size_t>(text.size(), room - 1);
    std::memcpy(*buffer, text.data(), length);
    static_cast<char*>(*buffer)[length] = '\0';
    *bytes = reinterpret_cast<void*>(length == 0 ? 0 : length + 1);
  }
  unsigned count_;
  const int* options_;
  void** values_;
};

int load(const char* name, void** out, const void* image, JitBuffers buffers) {
  return call(name, kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    if (config().module_load_seconds > 0) {
      call.lock.unlock();
      std::this_thread::sleep_for(std::chrono::duration<double>(config().module_load_seconds));
      call.lock.lock();
      call.wait_idle();
    }
    JitLog log;
    try {
      *out = driver().modules.add(load_image(image, call.context(), log));
    } catch (const Failure&) {
      buffers.fill(log);
      throw;
    }
    buffers.fill(log);
    return kSuccess;
  });
}

int load_file(const char* name, void** out, const char* path, JitBuffers buffers) {
  std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
  if (!file) return call(name, kContext, [](Call&) -> int { return kFileNotFound; });
  const std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return load(name, out, image.c_str(), buffers);
}

int unload(const char* name, void* handle) {
  return call(name, kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    Driver& state = driver();
    LoadedModule& module = state.modules.get(handle);
    for (const OperationPtr& operation : state.queue.pending()) {
      const auto* kernel = std::get_if<KernelWork>(&operation->work);
      if (kernel == nullptr || kernel->function->module != &module) continue;
      finding("unload-in-flight", "a module was unloaded while a kernel of it had not run",
              describe(operation->work));
      state.queue.drain(call);
      break;
    }
    for (const auto& [entry, function] : module.functions) {
      function->unloaded = true;
      function->module = nullptr;
      state.functions.erase(function.get());
    }
    state.modules.remove(&module);
    return state.sticky;
  });
}

int get_function(const char* name, void** out, void* handle, const char* entry) {
  return call(name, kContext, [&](Call&) -> int {
    require(out != nullptr && entry != nullptr && *entry != '\0', kInvalidValue);
    const LoadedModule& module = driver().modules.get(handle);
    const auto found = module.functions.find(entry);
    require(found != module.functions.end(), kNotFound);
    *out = found->second.get();
    return kSuccess;
  });
}

int get_global(const char* name, DevicePointer* address, size_t* bytes, void* handle, const char* variable) {
  return call(name, kContext, [&](Call&) -> int {
    require(variable != nullptr, kInvalidValue);
    for (const Global& global : driver().modules.get(handle).code->globals) {
      if (global.name != variable) continue;
      if (address != nullptr) *address = global.address;
      if (bytes != nullptr) *bytes = global.bytes;
      return kSuccess;
    }
    return kNotFound;
  });
}

int count_functions(const char* name, unsigned* count, void* handle) {
  return call(name, kContext, [&](Call&) -> int {
    require(count != nullptr, kInvalidValue);
    *count = static_cast<unsigned>(driver().modules.get(handle).functions.size());
    return kSuccess;
  });
}

int list_functions(const char* name, void** out, unsigned count, void* handle) {
  return call(name, kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    for (const auto& [entry, function] : driver().modules.get(handle).functions) {
      if (count == 0) break;
      count--;
      *out++ = function.get();
    }
    return kSuccess;
  });
}
}  // namespace

SOFT_API int cuModuleLoad(void** out, const char* path) {
  return load_file("cuModuleLoad", out, path, {0, nullptr, nullptr});
}

SOFT_API int cuModuleLoadData(void** out, const void* image) {
  return load("cuModuleLoadData", out, image, {0, nullptr, nullptr});
}

SOFT_API int cuModuleLoadDataEx(void** out, const void* image, unsigned count, int* options, void** values) {
  return load("cuModuleLoadDataEx", out, image, {count, options, values});
}

SOFT_API int cuModuleUnload(void* module) { return unload("cuModuleUnload", module); }

SOFT_API int cuModuleGetFunction(void** out, void* module, const char* name) {
  return get_function("cuModuleGetFunction", out, module, name);
}

SOFT_API int cuModuleGetGlobal_v2(DevicePointer* address, size_t* bytes, void* module, const char* name) {
  return get_global("cuModuleGetGlobal", address, bytes, module, name);
}

SOFT_API int cuModuleGetFunctionCount(unsigned* count, void* module) {
  return count_functions("cuModuleGetFunctionCount", count, module);
}

SOFT_API int cuModuleEnumerateFunctions(void** functions, unsigned count, void* module) {
  return list_functions("cuModuleEnumerateFunctions", functions, count, module);
}

SOFT_API int cuModuleGetLoadingMode(int* mode) {
  return call("cuModuleGetLoadingMode", kInitialized, [&](Call&) -> int {
    require(mode != nullptr, kInvalidValue);
    *mode = loads_eagerly() ? 1 : 2;
    return kSuccess;
  });
}

// --- libraries: they need not be loaded again for every context; here a library is its module ---

SOFT_API int cuLibraryLoadData(void** out, const void* image, int* options, void** values, unsigned count, int*,
                               void**, unsigned) {
  return load("cuLibraryLoadData", out, image, {count, options, values});
}

SOFT_API int cuLibraryLoadFromFile(void** out, const char* path, int* options, void** values, unsigned count, int*,
                                   void**, unsigned) {
  return load_file("cuLibraryLoadFromFile", out, path, {count, options, values});
}

SOFT_API int cuLibraryUnload(void* library) { return unload("cuLibraryUnload", library); }

SOFT_API int cuLibraryGetKernel(void** out, void* library, const char* name) {
  return get_function("cuLibraryGetKernel", out, library, name);
}

SOFT_API int cuLibraryGetModule(void** out, void* library) {
  return call("cuLibraryGetModule", kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = &driver().modules.get(library);
    return kSuccess;
  });
}

SOFT_API int cuLibraryGetGlobal(DevicePointer* address, size_t* bytes, void* library, const char* name) {
  return get_global("cuLibraryGetGlobal", address, bytes, library, name);
}

SOFT_API int cuLibraryGetKernelCount(unsigned* count, void* library) {
  return count_functions("cuLibraryGetKernelCount", count, library);
}

SOFT_API int cuLibraryEnumerateKernels(void** kernels, unsigned count, void* library) {
  return list_functions("cuLibraryEnumerateKernels", kernels, count, library);
}

SOFT_API int cuKernelGetFunction(void** out, void* kernel) {
  return call("cuKernelGetFunction", kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = function_of(kernel).get();
    return kSuccess;
  });
}
