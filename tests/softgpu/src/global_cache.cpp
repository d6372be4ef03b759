// A write-back cache without coherence. See the header for what it is for.
#include "global_cache.hpp"

#include <cstring>
#include <iterator>

#include "memory_arena.hpp"

namespace soft {

void GlobalCache::write_back(uint64_t number, Line& line, uint64_t which) {
  uint8_t* to = host_bytes(number * kLineBytes, kLineBytes);
  for (uint32_t i = 0; i < kLineBytes; ++i)
    if (which >> i & 1) to[i] = line.bytes[i];
}

void GlobalCache::read(uint64_t address, uint32_t bytes, uint8_t* out) {
  Line& line = lines_[address / kLineBytes];
  if (bits(address, bytes) & ~line.valid) {
    const uint8_t* from = host_bytes(address / kLineBytes * kLineBytes, kLineBytes);
    for (uint32_t i = 0; i < kLineBytes; ++i)
      if (!(line.valid >> i & 1)) line.bytes[i] = from[i];
    line.valid = ~0ull;
  }
  std::memcpy(out, line.bytes + address % kLineBytes, bytes);
}

void GlobalCache::write(uint64_t address, uint32_t bytes, const uint8_t* from) {
  Line& line = lines_[address / kLineBytes];
  std::memcpy(line.bytes + address % kLineBytes, from, bytes);
  line.valid |= bits(address, bytes);
  line.held |= bits(address, bytes);
}

void GlobalCache::bypass(uint64_t address, uint32_t bytes) {
  const auto found = lines_.find(address / kLineBytes);
  if (found == lines_.end()) return;
  Line& line = found->second;
  const uint64_t which = bits(address, bytes);
  write_back(found->first, line, line.held & which);
  line.held &= ~which;
  line.valid &= ~which;
}

void GlobalCache::drain() {
  for (auto& [number, line] : lines_) {
    if (line.held) write_back(number, line, line.held);
    line.held = 0;
  }
}

void GlobalCache::drop() {
  for (auto at = lines_.begin(); at != lines_.end();) {
    at->second.valid = at->second.held;
    at = at->second.valid ? std::next(at) : lines_.erase(at);
  }
}

}  // namespace soft
