// Faults that knobs inject into calls and kernels, and whether it is their turn.
//
// Apart because one file, the knob faults_once, speaks for all of them: a process that meets it is spared.
#pragma once
#include <cstdint>

namespace soft {
int failed_call(const char* name, uint64_t number);  // what this function's number-th call returns; 0: it works
int failed_launch(uint64_t number);                  // the result that this kernel leaves its context with; 0: none
bool hangs(uint64_t number);                         // this kernel never ends
}  // namespace soft
