// What an operation or a graph node does: a kernel, a copy, a fill, a host function, or nothing but order.
//
// Apart from the queue because graphs hold the same work as streams do, frozen.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "api_types.hpp"
#include "machine.hpp"

namespace soft {

struct Function;
class Call;

struct KernelWork {
  std::shared_ptr<Function> function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  std::vector<uint8_t> parameters;
};

struct Place {           // one end of a copy
  uint64_t address = 0;  // of the device or of this process
  uint64_t pitch = 0;    // from row to row; unused for one row
  bool host = false;
  bool pinned = false;  // host memory that a copy engine reaches by itself
};

struct CopyWork {
  Place to, from;
  uint64_t width = 0, rows = 1;      // bytes a row
  std::vector<uint8_t> staged = {};  // of a pageable source: what it held when the copy was enqueued
  uint64_t source_hash = 0;          // of a pinned source, likewise
  bool hashed = false;
  bool dropped = false;     // a peer write that goes nowhere
  bool looks_done = false;  // by a synchronous call that does not wait: ordered in the null stream alone
  bool holds_up = false;    // the call waits for it, or a real driver's may
};

struct FillWork {
  uint64_t to = 0, pitch = 0;
  uint32_t value = 0;
  int element_bytes = 1;
  uint64_t width = 0, rows = 1;  // elements a row
};

struct HostWork {
  HostFunction function;
  void* data;
};
struct FreeWork {
  uint64_t base;
};                    // cuMemFreeAsync
struct EmptyWork {};  // an event, a join, the ends of a graph

using Work = std::variant<EmptyWork, KernelWork, CopyWork, FillWork, HostWork, FreeWork>;

struct Range {
  uint64_t address, bytes;
  bool host, written;
};
// What it may touch. Of a kernel: the whole allocation that a parameter points into, which it may or may not write.
std::vector<Range> ranges(const Work& work);
bool uses(const Work& work, const Range& memory);  // as far as can be told: of a kernel, a parameter points into it
std::string describe(const Work& work);

void check(const CopyWork& copy);  // throws Failure: ends inside live allocations
void check(const FillWork& fill);
void stage(CopyWork& copy);                // takes a pageable source's bytes: the caller may change them from here on
void note_source(CopyWork& copy);          // takes a pinned source's hash: the caller may not
void count(const Work& work);              // that it has run
void poison_target(const CopyWork& copy);  // a host target reads as 0xff.. until the copy is done
// Carried out with the driver's lock open. Throws Fault. What a kernel has touched.
Footprint carry_out(const Work& work, uint64_t launch, const std::string& origin);
}  // namespace soft
