// cp.async: copies from global to shared memory that a thread has issued and not yet waited for.
//
// A copy's destination is poisoned when it is issued. Its bytes land at once, at the commit, or at the issuer's wait,
// as a seed says; whoever reads before the wait, or elsewhere than in the issuing lane before a barrier, is found out
// by the shadow whatever the moment was. The source is compared at the landing with what it was at the issue.
#pragma once
#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace soft {

constexpr uint32_t kCopyBytes = 16;  // of one lane, at most

class AsyncCopies {
 public:
  void reset(uint32_t threads);
  void issue(const Request& request, const uint64_t* source, const uint32_t* source_bytes);
  void commit(BlockMemory& block, uint32_t warp, uint32_t mask);
  void wait(BlockMemory& block, const Site& site, uint32_t warp, uint32_t mask, uint32_t pending_groups);
  void finish(BlockMemory& block);  // what is still pending is a finding

 private:
  enum class Moment : uint8_t { Issue, Commit, Wait };
  struct Copy {  // of one instruction of a warp
    Site site;
    uint32_t mask;   // lanes not yet waited for
    uint32_t group;  // of each of these lanes, from 0
    uint32_t bytes;
    Moment moment;
    bool landed;
    uint32_t offset[kLanes], source_bytes[kLanes];
    uint64_t source[kLanes];
    uint8_t before[kLanes * kCopyBytes];
  };
  void land(BlockMemory& block, const Copy& copy, uint32_t mask);
  void check_source(BlockMemory& block, const Copy& copy, int lane);

  std::vector<std::vector<Copy>> pending_;  // by warp
  std::vector<uint32_t> groups_;            // committed so far, by thread
};
}  // namespace soft
