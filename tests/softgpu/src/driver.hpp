// The driver's state: devices, contexts and every handle it has given out, behind one lock.
//
// All of it is what softgpu_reset forgets. The API's functions (api_*.cpp) come in by `call`, which answers what a
// driver checks before anything else: initialised, no fork, no fault yet, a current context, no capture in the way.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "api_types.hpp"
#include "graph.hpp"
#include "image.hpp"
#include "machine.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace soft {

// What an API function throws to return this code.
struct Failure {
  int result;
};
inline void require(bool good, int otherwise) {
  if (!good) throw Failure{otherwise};
}

// Objects behind handles: a handle that is not ours, or no longer, is told apart from one that is.
template <class T>
class Registry {
 public:
  T* add(std::unique_ptr<T> object) {
    T* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  T* find(const void* handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second.get();
  }
  T& get(const void* handle, int otherwise = kInvalidHandle) const {
    T* object = find(handle);
    require(object != nullptr, otherwise);
    return *object;
  }
  void remove(T* object) { objects_.erase(object); }
  void clear() { objects_.clear(); }
  template <class Visit>
  void each(Visit visit) const {
    for (const auto& [handle, object] : objects_) visit(*object);
  }
  template <class Test>
  void remove_if(Test test) {
    std::erase_if(objects_, [&](const auto& entry) { return test(*entry.second); });
  }

 private:
  std::unordered_map<const void*, std::unique_ptr<T>> objects_;
};

struct Context {
  int device = 0;
  bool primary = false;
  uint32_t flags = 0;
  uint64_t id = 0;
  Stream legacy;                                                  // the null stream
  std::map<std::thread::id, std::unique_ptr<Stream>> per_thread;  // CU_STREAM_PER_THREAD, one for each thread
  std::vector<OperationPtr> orphans;  // last operations of streams destroyed before they ran
  std::set<int> peers;                // devices whose memory this context may reach
  size_t limits[7] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};  // by CUlimit
};

struct Device {
  int card = 0;  // by which nvidia-smi would count it
  Context* primary = nullptr;
  int retained = 0;
  uint32_t primary_flags = 0;
};

// An allocation as the driver sees it: who owns it, and which of those that had its address it is.
struct DeviceBlock {
  uint64_t bytes = 0, serial = 0;
  Context* context = nullptr;
};

struct HostBlock {  // pinned memory
  uint64_t bytes = 0;
  bool registered = false;  // cuMemHostRegister, so the memory is the caller's
  Context* context = nullptr;
};

struct Driver {
  std::mutex lock;
  std::condition_variable changed;             // an operation ended
  uint64_t generation = 0;                     // one more at every reset
  int process = 0;                             // that called cuInit; 0: nobody yet
  int sticky = 0;                              // the fault that every call returns from now on
  uint64_t next_id = 1;                        // contexts, streams, captures, launches
  uint64_t launches = 0;                       // kernels started, those of graphs among them
  int64_t memory_questions = 0;                // cuMemGetInfo calls, for free_memory_drift
  double first_init = -1, first_context = -1;  // when the calls that a knob makes fail were made first
  std::vector<Device> devices;
  Registry<Context> contexts;
  Registry<Stream> streams;
  Registry<Event> events;
  Registry<LoadedModule> modules;
  std::unordered_map<const void*, std::shared_ptr<Function>> functions;
  Registry<Graph> graphs;
  Registry<GraphExec> executables;
  std::map<uint64_t, DeviceBlock> memory;  // by base
  std::map<uint64_t, HostBlock> pinned;    // by base
  std::vector<std::shared_ptr<Capture>> captures;
  std::vector<std::shared_ptr<GraphRun>> runs;  // graphs in flight
  Queue queue;
};
Driver& driver();

// What a thread carries: its stack of contexts, its capture mode, and whether it is inside a host function.
struct ThreadState {
  uint64_t generation = 0;
  std::vector<Context*> stack;
  int capture_mode = 0;
  bool in_host_function = false;
};
ThreadState& thread_state();  // emptied by softgpu_reset

enum Needs : unsigned {
  kAlways = 0,  // works before cuInit and after a fault
  kInitialized = 1,
  kContext = 3,  // a current context on this thread
  kIdle = 4,     // no operation may run meanwhile: it touches memory or modules
  kUnsafe = 8,   // refused where a capture forbids potentially unsafe calls
};

// An API call in progress. It holds the driver's lock.
class Call {
 public:
  Call(const char* name, unsigned needs);
  const char* name;
  std::unique_lock<std::mutex> lock;
  int refused = 0;
  Context& context() const { return *thread_state().stack.back(); }
  void count();  // refuses it where a knob makes it fail
  void wait_idle();
};

template <class Body>
int call(const char* name, unsigned needs, Body body) {
  Call call(name, needs);
  if (call.refused == 0) call.count();
  if (call.refused != 0) return call.refused;
  try {
    return body(call);
  } catch (const Failure& failure) {
    return failure.result;
  } catch (const Unsupported&) {  // already a finding
    return kNotSupported;
  } catch (const Fault& raised) {
    return driver().sticky = raised.result;
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

bool forked();  // this process is a child of one that had called cuInit
Context* new_context(int device, uint32_t flags, bool primary);
void destroy_context(Call& call, Context& context);
Device& device_at(int ordinal);  // throws Failure
void reset_driver(const std::string& knobs);
void write_report();  // to the knob's file; nothing where there is none
double seconds_now();

// Device and pinned memory as the driver keeps books of it.
uint64_t allocate_block(Context& context, uint64_t bytes, const char* tag);  // throws Failure
void release_block(uint64_t base);
bool in_device_memory(uint64_t address);  // by its value: inside some device's range
const DeviceBlock* find_block(uint64_t address, uint64_t* base = nullptr);
bool device_range(uint64_t address, uint64_t bytes);  // wholly inside one live allocation
bool is_pinned(uint64_t address, uint64_t bytes);
}  // namespace soft
