// What the soft GPU objects to. A finding names the rule and the place; a fault also ends the launch with a CUresult.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace soft {

// Where in a program: filled by the machine before it executes an instruction, so it costs two stores a step.
struct Instruction;  // ir.hpp
struct Site {
  const char* kernel = "";
  uint32_t block[3] = {0, 0, 0};
  uint32_t warp = 0;
  const Instruction* instruction = nullptr;  // its PTX line, source line and text; null outside a kernel
};
// "norm_rms_bf16 block (3,0,0) warp 2 lane 17, ptx line 88 (kernels/norm.cu:41): st.global.b16 [%rd7], %rs2;"
std::string describe(const Site& site, int lane);  // lane -1: the warp

// rule: a short stable name in kebab-case ("shared-race", "out-of-bounds", "hang", ...), which tests match.
// The same rule at the same instruction is recorded once with a count, so that a broken kernel does not fill memory.
void finding(const char* rule, const std::string& what, const std::string& where);
void finding(const char* rule, const std::string& what, const Site& site, int lane);
std::string findings_json();  // [{"rule":..., "what":..., "where":..., "count":n}, ...]
void clear_findings();

// Thrown inside a launch; the driver makes it the context's sticky error.
struct Fault {
  int result;        // CUresult: 700 illegal address, 716 misaligned, 715 illegal instruction, 702 timeout, 719 ...
  std::string what;  // already recorded as a finding by who throws
};
[[noreturn]] void fault(int result, const char* rule, const std::string& what, const Site& site, int lane);
// A thing of PTX or the driver API that is not built: never guessed at. A finding ("unsupported"), then thrown.
struct Unsupported { std::string what; };
[[noreturn]] void unsupported(const std::string& what);
}  // namespace soft
