// Launches and their limits.
#include "api_launch.hpp"

#include <cstring>

#include "config.hpp"
#include "counters.hpp"
#include "driver_profile.hpp"
#include "findings.hpp"

using namespace soft;

namespace soft {
namespace {

constexpr uint32_t kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535;
constexpr uint32_t kMaxBlock[3] = {1024, 1024, 64};
constexpr uint32_t kMaxThreads = 1024;

void check_limits(const Function& function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes) {
  const Kernel& kernel = *function.kernel;
  for (int axis = 0; axis < 3; axis++) {
    require(grid[axis] > 0 && grid[axis] <= (axis == 0 ? kMaxGridX : kMaxGridYZ), kInvalidValue);
    require(block[axis] > 0 && block[axis] <= kMaxBlock[axis], kInvalidValue);
    require(kernel.required[0] == 0 || kernel.required[axis] == block[axis], kInvalidValue);
  }
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  require(threads <= kMaxThreads && threads <= kernel.max_threads, kInvalidValue);
  require(shared_bytes <= function.max_dynamic_shared, kInvalidValue);
  require(block_registers(function.registers, static_cast<int>(threads)) <= kRegisters, kLaunchOutOfResources);
}

// `extra` is a list of key and value, ended by 0: 1 is the packed parameters' address, 2 that of their size.
std::vector<uint8_t> packed_parameters(const Kernel& kernel, void** extra) {
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != nullptr; extra += 2) {
    const auto key = reinterpret_cast<uintptr_t>(extra[0]);
    require(key == 1 || key == 2, kInvalidValue);
    if (key == 1) buffer = extra[1];
    if (key == 2) bytes = *static_cast<const size_t*>(extra[1]);
  }
  require(buffer != nullptr && bytes >= kernel.parameter_bytes, kInvalidValue);
  const auto* from = static_cast<const uint8_t*>(buffer);
  return std::vector<uint8_t>(from, from + kernel.parameter_bytes);
}

std::vector<uint8_t> gather_parameters(const Kernel& kernel, void** parameters, void** extra) {
  require(parameters == nullptr || extra == nullptr, kInvalidValue);
  if (extra != nullptr) return packed_parameters(kernel, extra);
  require(parameters != nullptr || kernel.parameters.empty(), kInvalidValue);
  std::vector<uint8_t> gathered(kernel.parameter_bytes);
  for (size_t index = 0; index < kernel.parameters.size(); index++) {
    const Parameter& parameter = kernel.parameters[index];
    require(parameters[index] != nullptr, kInvalidValue);
    std::memcpy(&gathered[parameter.offset], parameters[index], parameter.bytes);
  }
  return gathered;
}

int launch(Call& call, void* handle, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
           void* stream_handle, void** parameters, void** extra) {
  std::shared_ptr<Function> function = function_of(handle);
  Stream& stream = stream_of(call, stream_handle);
  require(function->module->context == stream.context, kInvalidHandle);
  KernelWork work = kernel_work(function, grid, block, shared_bytes, parameters, extra);
  enqueue(call, stream, std::move(work));
  if (stream.capture == nullptr) {
    function->warm = true;
    driver_counters().launches++;
  }
  return kSuccess;
}

void check_attributes(const LaunchConfig& config) {
  for (uint32_t index = 0; index < config.attribute_count; index++) {
    const LaunchAttribute& attribute = config.attributes[index];
    const uint32_t* cluster = attribute.value.dimension;
    switch (attribute.id) {
      case 0: case 1: case 5: case 8: case 14: break;  // ignore; access window, policies, priority, carveout: hints
      case 2: case 6:                                  // cooperative; programmatic stream serialization
        if (attribute.value.integer != 0) unsupported("launch attribute " + std::to_string(attribute.id));
        break;
      case 4:
        if (cluster[0] * cluster[1] * cluster[2] != 1) unsupported("clusters of blocks");
        break;
      default: unsupported("launch attribute " + std::to_string(attribute.id));
    }
  }
}
}  // namespace

std::shared_ptr<Function> function_of(const void* handle) {
  const auto found = driver().functions.find(handle);
  require(found != driver().functions.end(), kInvalidHandle);
  return found->second;
}

KernelWork kernel_work(std::shared_ptr<Function> function, const uint32_t grid[3], const uint32_t block[3],
                       uint32_t shared_bytes, void** parameters, void** extra) {
  check_limits(*function, grid, block, shared_bytes);
  KernelWork work{std::move(function), {}, {}, shared_bytes, {}};
  std::memcpy(work.grid, grid, sizeof work.grid);
  std::memcpy(work.block, block, sizeof work.block);
  work.parameters = gather_parameters(*work.function->kernel, parameters, extra);
  return work;
}

uint32_t max_dynamic_shared(const Function& function) {
  const uint32_t optin = profile().shared_per_block_optin;
  return optin - std::min(function.kernel->static_shared, optin);
}
}  // namespace soft

SOFT_API int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                            void** parameters, void** extra) {
  return call("cuLaunchKernel", kContext, [&](Call& call) -> int {
    const uint32_t grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    return launch(call, function, grid, block, shared_bytes, stream, parameters, extra);
  });
}

SOFT_API int cuLaunchKernelEx(const LaunchConfig* how, void* function, void** parameters, void** extra) {
  return call("cuLaunchKernelEx", kContext, [&](Call& call) -> int {
    require(how != nullptr, kInvalidValue);
    check_attributes(*how);
    return launch(call, function, how->grid, how->block, how->shared_bytes, how->stream, parameters, extra);
  });
}

SOFT_API int cuLaunchHostFunc(void* handle, HostFunction function, void* data) {
  return call("cuLaunchHostFunc", kContext, [&](Call& call) -> int {
    require(function != nullptr, kInvalidValue);
    enqueue(call, stream_of(call, handle), HostWork{function, data});
    return kSuccess;
  });
}
