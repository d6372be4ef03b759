// Knobs of the soft GPU: what card and driver it plays, how adversarial it is, and which faults it injects.
//
// A knob is an environment variable (SOFTGPU_DRIVER_VERSION=12020) or a line of the text given to softgpu_reset
// ("driver_version=12020\nseed=3\n"); an unknown one stops the process. Config is read-only while work runs.
#pragma once
#include <cstdint>
#include <string>

namespace soft {

struct Config {
  // The card.
  int capability = 80;              // compute capability, major * 10 + minor
  int devices = 1;
  int sm_count = 4;
  uint64_t memory_bytes = 141ull << 30;  // of each device; reserved sparsely
  int64_t free_memory_off = 0;      // bytes that cuMemGetInfo reports less than are there (negative: more)
  int64_t free_memory_drift = 0;    // and less again at each call than at the call before: others allocate
  bool mig = false;                 // one device, a slice of a card: few SMs, no peer access
  bool peer_access = true;
  bool peer_writes_dropped = false; // peer access is granted and writes vanish
  // The driver.
  int driver_version = 12080;
  // A cubin runs as the .ptx here that holds the same entries; registers come from its manifest.json.
  std::string ptx_directory;
  // How it runs.
  uint64_t seed = 0;                // orders, jitter, fusing, async landings: everything that a card may choose
  bool jitter = true;               // approximate ops move within their documented error, mma in order and truncation
  bool fuse = true;                 // un-rounded mul + add become fma at random
  bool adversarial = false;         // a block's stores drain at fences and exit, its read cache drops at fences
  int resident_blocks = 0;          // blocks that run at once; 0: as many as there are host threads
  std::string block_order = "forward";  // forward | reverse | shuffle
  std::string warp_order = "forward";   // forward | reverse | shuffle
  int threads = 0;                  // host threads; 0: the machine's
  uint64_t instruction_limit = 0;   // warp instructions of one block before it counts as hanging; 0: 1e8
  std::string allow_float_atomics;  // kernels, by name and comma, whose float atomics are no finding
  bool strict_copies = false;       // copies that hold the host up are findings: an engine's steady state has none
  bool checks = true;               // the memory rules; off only to measure what they cost
  // Faults: result codes that calls return instead of working; 0: none.
  int init_error = 0;               // cuInit: 100, 803, 804, 999 ...
  double init_error_seconds = 0;    // for how long after the first call; 0: for ever
  int context_error = 0;            // cuDevicePrimaryCtxRetain, cuCtxCreate: 46, 101, 802 ...
  double context_error_seconds = 0;
  int host_register_error = 0;      // cuMemHostRegister: 801
  double pin_seconds_per_gb = 0;
  double module_load_seconds = 0;
  int ptx_jit_error = 0;            // loading PTX text: 221 where the compiler's library is missing ...
  int graph_instantiate_error = 0;
  std::string fail_call;            // the fail_at-th call of this function does nothing and returns fail_error
  uint64_t fail_at = 1;             // from 1, of the calls that pass the driver's own checks
  int fail_error = 2;
  int launch_error = 0;             // 700, 719 ...: the fault_at_launch-th kernel leaves the context with it
  uint64_t fault_at_launch = 0;     // from 1, in the order in which they run, graphs' nodes included; 0: none
  uint64_t hang_at_launch = 0;      // this one never ends, and what comes after it never runs
  std::string faults_once;          // file that the first of these (call, fault, hang) makes; where it is, none happens:
                                    // a process that is started again in the same environment works
  // What it leaves.
  std::string report;               // file that takes findings and counters as JSON when the process ends or faults;
                                    // %p in its name is the process's number
  bool report_at_waits = false;     // and whenever work was waited for: there is one though the process be killed
};

const Config& config();
void configure(const std::string& lines);  // defaults, then the environment, then these lines
}  // namespace soft
