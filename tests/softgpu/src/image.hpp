// What cuModuleLoad* and cuLibraryLoad* are given, PTX text or a cubin, and what is known of its entries.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine.hpp"

namespace soft {

struct Context;
struct LoadedModule;

struct Function {  // an entry of a loaded module; the handle of CUfunction and CUkernel alike
  LoadedModule* module = nullptr;
  std::shared_ptr<Module> code;  // keeps the kernel while work in flight refers to it
  const Kernel* kernel = nullptr;
  int device = 0;
  int registers = 32;
  uint32_t max_dynamic_shared = 0;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  bool warm = false;                // loaded: launched, loaded or asked about outside a capture
  bool unloaded = false;
};

struct LoadedModule {  // the handle of CUmodule and CUlibrary alike
  Context* context = nullptr;
  int device = 0;
  std::shared_ptr<Module> code;
  std::map<std::string, std::shared_ptr<Function>> functions;
};

struct JitLog {
  std::string info, error;
};

// Throws Failure with the code that a driver gives, its reason in the log.
std::unique_ptr<LoadedModule> load_image(const void* image, Context& context, JitLog& log);

// Registers a thread of an entry on an architecture by the manifest, 0 where it does not say.
int manifest_registers(const std::string& directory, const std::string& entry, int capability);

// The architecture that a cubin is for, and its entries; throws Failure for what is none.
struct Cubin {
  int capability = 0;
  std::vector<std::string> entries;
};
Cubin read_cubin(const uint8_t* image);
bool loads_eagerly();                // functions are loaded with their module, not at first use
int newest_ptx(int driver_version);  // 12080 -> 87, major * 10 + minor
}  // namespace soft
