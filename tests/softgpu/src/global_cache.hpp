// The adversarial view of global memory: a block's stores are held back until it fences, releases or ends, and what
// it has read stays as it was until it fences or acquires. So code that lacks a fence computes wrong numbers here as
// well.
#pragma once
#include <cstdint>
#include <unordered_map>

namespace soft {

class GlobalCache {
 public:
  void read(uint64_t address, uint32_t bytes, uint8_t* out);
  void write(uint64_t address, uint32_t bytes, const uint8_t* from);
  // Before a strong access: what the block holds of these bytes goes to memory and is forgotten.
  void bypass(uint64_t address, uint32_t bytes);
  void drain();  // stores reach memory
  void drop();   // what was read is forgotten, held stores are not
  void reset() { lines_.clear(); }

 private:
  static constexpr uint32_t kLineBytes = 64;
  struct Line {
    uint64_t valid = 0, held = 0;  // by byte
    uint8_t bytes[kLineBytes];
  };
  static uint64_t bits(uint64_t address, uint32_t bytes) { return ((1ull << bytes) - 1) << address % kLineBytes; }
  static void write_back(uint64_t number, Line& line, uint64_t which);

  std::unordered_map<uint64_t, Line> lines_;
};
}  // namespace soft
