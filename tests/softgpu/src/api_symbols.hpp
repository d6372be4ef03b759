// The names of the driver API: api_symbols.cpp holds them, api_lookup.cpp answers cuGetProcAddress from them.
#pragma once
#include <cstddef>
#include <span>
#include <string_view>

namespace soft {

struct ApiSymbol {
  const char* exported;            // "cuMemAlloc_v2", as the library exports it
  int version;                     // 3020: asked for by at least this version, "cuMemAlloc" means it
  std::string_view base() const;   // "cuMemAlloc"
};

std::span<const ApiSymbol> api_symbols();
bool is_api_call(std::string_view name);  // "cuMemAlloc": a function by its base, or by the name that cuda.h gives it
}  // namespace soft
