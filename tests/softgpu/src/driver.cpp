// The driver's state and the checks that come before every API call; reset and the report at the end of a process.
#include "driver.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "config.hpp"
#include "counters.hpp"
#include "findings.hpp"
#include "injected.hpp"

namespace soft {
namespace {

// Set up before the first call: the environment's knobs, and the report when the process ends.
struct Start {
  Start() {
    configure("");
    driver().queue.reseed(config().seed);
    write_report();  // notes whose process it is, and that the file can be written
    std::atexit(write_report);
  }
};

bool in_context(const ThreadState& thread) { return !thread.stack.empty() && thread.stack.back() != nullptr; }

// What a driver checks first. It may wait, so it may find a fault that was not there when the call came in.
int check(Call& call, unsigned needs) {
  const Driver& state = driver();
  const ThreadState& thread = thread_state();
  if (needs == kAlways) return kSuccess;
  if (thread.in_host_function) return kNotPermitted;
  if (state.sticky != 0) return state.sticky;
  if ((needs & kContext) == kContext && !in_context(thread)) return kInvalidContext;
  if ((needs & kUnsafe) != 0 && capture_forbids(call)) return kCaptureUnsupported;
  if ((needs & kIdle) != 0) call.wait_idle();
  return state.sticky;
}
}  // namespace

Driver& driver() {
  static Driver* one = new Driver;  // never destroyed: threads may still be here when the process ends
  return *one;
}

ThreadState& thread_state() {
  static thread_local ThreadState state;
  if (state.generation != driver().generation) {
    const bool inside = state.in_host_function;
    state = ThreadState{};
    state.generation = driver().generation;
    state.in_host_function = inside;
  }
  return state;
}

bool forked() { return driver().process != 0 && driver().process != getpid(); }

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Call::Call(const char* called, unsigned needs) : name(called) {
  static Start start;
  Driver& state = driver();
  // Before the lock: in a forked child another thread of the parent may hold it for ever.
  if ((needs & kInitialized) != 0 && state.process != getpid()) {
    refused = kNotInitialized;
    return;
  }
  lock = std::unique_lock(state.lock);
  refused = check(*this, needs);
}

void Call::count() { refused = failed_call(name, ++driver_counters().calls[name]); }

void Call::wait_idle() {
  driver().changed.wait(lock, [] { return !driver().queue.busy(); });
}

Device& device_at(int ordinal) {
  Driver& state = driver();
  require(ordinal >= 0 && ordinal < static_cast<int>(state.devices.size()), kInvalidDevice);
  return state.devices[ordinal];
}

Context* new_context(int device, uint32_t flags, bool primary) {
  Driver& state = driver();
  Context* context = state.contexts.add(std::make_unique<Context>());
  context->device = device;
  context->flags = flags;
  context->primary = primary;
  context->id = state.next_id++;
  context->legacy.context = context;
  context->legacy.legacy = true;
  context->legacy.id = state.next_id++;
  return context;
}

// Its work runs to its end first, as a driver's does; then its streams, events, modules, graphs and memory are gone.
void destroy_context(Call& call, Context& context) {
  Driver& state = driver();
  state.queue.drain(call);
  const auto mine = [&](const auto& object) { return object.context == &context; };
  for (const auto& capture : std::vector(state.captures)) {
    if (capture->origin->context == &context) leave_capture(*capture);
  }
  state.executables.remove_if(mine);
  state.graphs.remove_if(mine);
  state.events.remove_if(mine);
  state.streams.remove_if(mine);
  std::erase_if(state.functions, [&](const auto& entry) { return entry.second->module->context == &context; });
  state.modules.remove_if(mine);
  for (auto block = state.memory.begin(); block != state.memory.end();) {
    const bool owned = block->second.context == &context;
    if (owned) release(block->first);
    block = owned ? state.memory.erase(block) : std::next(block);
  }
  for (auto block = state.pinned.begin(); block != state.pinned.end();) {
    const bool owned = block->second.context == &context;
    if (owned && !block->second.registered) std::free(reinterpret_cast<void*>(block->first));
    block = owned ? state.pinned.erase(block) : std::next(block);
  }
  for (const int peer : context.peers) set_peer_access(context.device, peer, false);
  for (Device& device : state.devices) {
    if (device.primary == &context) device.primary = nullptr;
  }
  std::erase(thread_state().stack, &context);
  state.contexts.remove(&context);
}

void reset_driver(const std::string& knobs) {
  Call call("softgpu_reset", kAlways);
  Driver& state = driver();
  write_report();
  state.queue.abandon();
  state.changed.wait(call.lock, [&] { return state.queue.pending().empty(); });
  state.captures.clear();
  state.runs.clear();
  state.executables.clear();
  state.graphs.clear();
  state.events.clear();
  state.streams.clear();
  state.functions.clear();
  state.modules.clear();
  for (const auto& [base, block] : state.pinned) {
    if (!block.registered) std::free(reinterpret_cast<void*>(base));
  }
  state.pinned.clear();
  state.memory.clear();
  state.contexts.clear();
  state.devices.clear();
  state.generation++;
  state.process = state.sticky = 0;
  state.next_id = 1;
  state.launches = 0;
  state.memory_questions = 0;
  state.first_init = state.first_context = -1;
  reset_memory();
  clear_findings();
  clear_counters();
  configure(knobs);
  state.queue.reseed(config().seed);
}

void write_report() {
  static const int process = getpid();
  if (config().report.empty() || getpid() != process) return;  // not a forked child's
  std::string name = config().report;
  if (const size_t at = name.find("%p"); at != std::string::npos) name.replace(at, 2, std::to_string(process));
  // Renamed into place: whoever reads it, or kills this process meanwhile, finds a whole one.
  const std::string scratch = name + ".part";
  std::ofstream(scratch) << "{\"findings\": " << findings_json() << ", \"counters\": " << counters_json()
                         << ", \"fault\": " << driver().sticky << "}\n";
  std::rename(scratch.c_str(), name.c_str());
}

// --- memory ------------------------------------------------------------------------------------------------------

uint64_t allocate_block(Context& context, uint64_t bytes, const char* tag) {
  require(bytes > 0, kInvalidValue);
  const uint64_t base = allocate(context.device, bytes, tag);
  require(base != 0, kOutOfMemory);
  driver().memory[base] = DeviceBlock{bytes, driver().next_id++, &context};
  driver_counters().allocations++;
  return base;
}

void release_block(uint64_t base) {
  driver().memory.erase(base);
  release(base);
}

bool in_device_memory(uint64_t address) {
  return address >= kDeviceBase && address < kDeviceBase + kDeviceStride * driver().devices.size();
}

const DeviceBlock* find_block(uint64_t address, uint64_t* base) {
  const auto& memory = driver().memory;
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  const auto& [start, block] = *std::prev(after);
  if (address - start >= block.bytes) return nullptr;
  if (base != nullptr) *base = start;
  return &block;
}

bool device_range(uint64_t address, uint64_t bytes) {
  const Allocation* allocation = find_allocation(address);  // a module's variables are none of the driver's blocks
  return allocation != nullptr && bytes <= allocation->bytes - (address - allocation->base);
}

bool is_pinned(uint64_t address, uint64_t bytes) {
  const auto& pinned = driver().pinned;
  auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  const auto& [base, block] = *std::prev(after);
  return address - base < block.bytes && bytes <= block.bytes - (address - base);
}
}  // namespace soft

SOFT_API void softgpu_reset(const char* knobs) { soft::reset_driver(knobs == nullptr ? "" : knobs); }

SOFT_API const char* softgpu_findings() {
  soft::Call call("softgpu_findings", soft::kAlways);
  static std::string text;
  text = soft::findings_json();
  return text.c_str();
}

SOFT_API const char* softgpu_counters() {
  soft::Call call("softgpu_counters", soft::kAlways);
  static std::string text;
  text = soft::counters_json();
  return text.c_str();
}

SOFT_API void softgpu_expect_zero(uint64_t address, uint64_t bytes) {
  soft::Call call("softgpu_expect_zero", soft::kAlways);
  soft::expect_zero(address, bytes);
}
