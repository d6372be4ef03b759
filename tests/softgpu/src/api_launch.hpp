// A kernel's launch as the API describes it, checked and made into work: for streams (api_launch.cpp) and graphs.
#pragma once
#include "driver.hpp"

namespace soft {

std::shared_ptr<Function> function_of(const void* handle);  // CUfunction or CUkernel; throws Failure
KernelWork kernel_work(std::shared_ptr<Function> function, const uint32_t grid[3], const uint32_t block[3],
                       uint32_t shared_bytes, void** parameters, void** extra);
uint32_t max_dynamic_shared(const Function& function);  // that the attribute may be set to
}  // namespace soft
