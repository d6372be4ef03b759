// Streams as queues that run late: operations, the order they may run in, and who makes them run.
//
// Enqueueing runs nothing. A call that waits, or a query, runs operations one at a time on its own thread, chosen by
// the seed among all whose predecessors are done, whichever stream they are in: any order that a card might take. The
// driver's lock is open meanwhile, so that other threads can go on enqueueing and asking.
//
//   stream 1   copy ──> kernel ──> record e          an operation knows its predecessors (`after`): the one before it
//                                     │              in its stream, events it waits for, and across the null stream
//   stream 2            wait e <──────┘ ──> copy     the last of every blocking stream
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "stream_work.hpp"

namespace soft {

struct Context;
struct Capture;
struct GraphNode;
struct GraphRun;
class Call;

enum class State : uint8_t { Waiting, Running, Done };

struct Operation {
  uint64_t id = 0;
  Work work;
  std::vector<std::shared_ptr<Operation>> after;  // emptied when this one is done
  State state = State::Waiting;
  bool hung = false;        // it never ends
  bool poison_due = false;  // its host target is not poisoned yet: an earlier operation still reads from there
  std::chrono::steady_clock::time_point finished;
  std::string origin;             // the call that enqueued it
  std::shared_ptr<GraphRun> run;  // the graph's launch that it is a node of
};
using OperationPtr = std::shared_ptr<Operation>;

struct Stream {
  Context* context = nullptr;
  uint64_t id = 0;
  uint32_t flags = 0;
  int priority = 0;
  bool legacy = false;  // the null stream
  OperationPtr last;    // its newest operation
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> tail;  // while capturing: the nodes that what comes next depends on
  bool blocking() const { return !legacy && (flags & 1) == 0; }
};

struct Event {
  Context* context = nullptr;
  uint32_t flags = 0;
  OperationPtr recorded;    // null: never, or inside a capture
  bool in_capture = false;  // last recorded inside a capture
  std::weak_ptr<Capture> capture;
  std::vector<GraphNode*> nodes;
  bool timed() const { return (flags & 2) == 0; }
};

class Queue {
 public:
  OperationPtr add(Work work, std::vector<OperationPtr> after, const char* origin);
  bool busy() const { return busy_; }  // an operation other than a host function is running
  // Runs operations until this one is done. False where a fault ended it.
  bool wait(Call& call, const OperationPtr& target);
  // As a query does: makes some progress, perhaps, and says whether it is done.
  bool poll(Call& call, const OperationPtr& target);
  void drain(Call& call);
  void limit(Call& call);  // a queue is not endless: enqueueing waits where too much is pending
  const std::vector<OperationPtr>& pending() const { return pending_; }
  void abandon();  // after a fault
  void reseed(uint64_t seed) { random_ = seed * 2 + 1; }
  uint64_t random(uint64_t below);

 private:
  using Needed = std::unordered_set<uint64_t>;  // operations by id
  bool step(Call& call, const Needed* needed = nullptr, bool needed_first = false);
  void execute(Call& call, const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  void note_run(const Operation& operation, const Footprint& footprint);
  void poison(Operation& operation);
  void check_order(const OperationPtr& operation);
  std::vector<OperationPtr> pending_;  // in the order they were enqueued
  bool busy_ = false;
  bool idle_poll_ = false;  // the last query made no progress
  uint64_t random_ = 1;
};

// Puts work into a stream, or into the graph that it captures. Throws Failure. What comes back is null under capture.
OperationPtr enqueue(Call& call, Stream& stream, Work work);
std::vector<OperationPtr> predecessors(Stream& stream);  // what the stream's next operation comes after
Stream& stream_of(Call& call, void* handle);             // 0, 1: the null stream; 2: this thread's; throws Failure
bool comes_after(const OperationPtr& later, const OperationPtr& earlier);
}  // namespace soft
