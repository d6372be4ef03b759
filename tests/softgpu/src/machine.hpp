// Modules and launches, as the driver sees them: PTX in, kernels out, a grid run to its end.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config.hpp"
#include "counters.hpp"
#include "findings.hpp"

namespace soft {

struct Parameter { uint32_t offset, bytes, alignment; };

struct Kernel {                      // one .entry
  std::string name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared = 0, local_bytes = 0;
  uint32_t dynamic_alignment = 1;    // of the extern shared array that the kernel declares
  uint32_t max_threads = 1024;       // .maxntid's product, else 1024
  uint32_t required[3] = {0, 0, 0};  // .reqntid
  uint32_t min_blocks = 0;           // .minnctapersm
  virtual ~Kernel() = default;
};

struct Global { std::string name; uint64_t address; uint64_t bytes; };  // a module-scope .global or .const variable

struct Module {
  int version_major = 0, version_minor = 0;  // of the PTX ISA
  int target = 0;                            // sm_80 -> 80
  std::vector<std::shared_ptr<Kernel>> kernels;  // of all loads of the same text
  std::vector<Global> globals;
  virtual ~Module() = default;
};

struct PtxError { int line; std::string what; };

// Parses, checks and decodes once. Throws PtxError for text that ptxas would refuse, Unsupported for what is not
// built (an opcode, a modifier, a directive: named with its line). `device`: where .global variables are placed.
std::unique_ptr<Module> load_module(const std::string& ptx, int device);
struct PtxHeader { int version_major, version_minor, target; };
PtxHeader read_header(const std::string& ptx);  // throws PtxError

struct Launch {
  const Kernel* kernel;
  int device;
  uint32_t grid[3], block[3];
  uint32_t dynamic_shared;
  std::vector<uint8_t> parameters;  // parameter_bytes of them
  uint64_t id;
};
struct Footprint { std::vector<uint64_t> written, read; };  // pages, as written_pages and read_pages of memory.hpp
// Runs the grid to its end on the configured host threads. Throws Fault. The driver has checked the launch's limits.
Footprint run(const Launch& launch);
}  // namespace soft
