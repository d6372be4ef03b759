// cuGetProcAddress: which function a name means to a driver of the played version; stand-ins for what is not built.
//
// A client asks for hundreds of names at first use, so a function that is not built must be found, and refuse when it
// is called. Each has a stand-in of its own, so that the finding names it.
#include <dlfcn.h>

#include <array>
#include <string>
#include <utility>

#include "api_symbols.hpp"
#include "config.hpp"
#include "driver.hpp"
#include "findings.hpp"

namespace soft {
namespace {

constexpr size_t kStandIns = 1024;

int refuse(size_t index) {
  return call(api_symbols()[index].exported, kAlways, [&](Call& call) -> int { unsupported(call.name); });
}

template <size_t Index>
int stand_in() {
  return refuse(Index);
}

template <size_t... Indices>
constexpr auto make_stand_ins(std::index_sequence<Indices...>) {
  return std::array<int (*)(), sizeof...(Indices)>{stand_in<Indices>...};
}
constexpr auto kStandInTable = make_stand_ins(std::make_index_sequence<kStandIns>());

// This library, whichever name it was loaded by.
void* own_handle() {
  static void* handle = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&refuse), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return handle;
}

enum Status : int { kFound = 0, kNoSuchSymbol = 1, kVersionTooLow = 2 };

Status look_up(const std::string& name, int version, void** function) {
  *function = nullptr;
  bool known = false;
  const ApiSymbol* best = nullptr;
  for (const ApiSymbol& symbol : api_symbols()) {
    if (symbol.base() != name || symbol.version > config().driver_version) continue;
    known = true;
    if (symbol.version <= version && (best == nullptr || symbol.version > best->version)) best = &symbol;
  }
  if (best == nullptr) return known ? kVersionTooLow : kNoSuchSymbol;
  *function = dlsym(own_handle(), best->exported);
  if (*function == nullptr) *function = reinterpret_cast<void*>(kStandInTable[best - api_symbols().data()]);
  return kFound;
}

int get_address(const char* name, void** function, int version, uint64_t flags, int* status) {
  return call("cuGetProcAddress", kAlways, [&](Call&) -> int {
    require(name != nullptr && function != nullptr && flags <= 2, kInvalidValue);
    if (flags == 2)
      unsupported("per-thread default streams by cuGetProcAddress: use the handle CU_STREAM_PER_THREAD");
    const Status found = look_up(name, version, function);
    if (status != nullptr) *status = found;
    return found == kFound ? kSuccess : kNotFound;
  });
}
}  // namespace
}  // namespace soft

SOFT_API int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return soft::get_address(name, function, version, flags, nullptr);
}

SOFT_API int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  return soft::get_address(name, function, version, flags, status);
}
