// The queue: what follows what, what runs next, and how a waiting call makes it run.
#include "stream.hpp"

#include <algorithm>
#include <thread>

#include "config.hpp"
#include "counters.hpp"
#include "driver.hpp"
#include "findings.hpp"
#include "injected.hpp"
#include "random.hpp"

namespace soft {
namespace {

constexpr size_t kPendingLimit = 1024;  // of a device's queue, about

// How a waiting call chooses: among all that may run; first what it waits for; last what it waits for.
enum Manner : int { kAny, kNeededFirst, kNeededLast, kManners };

bool ready(const Operation& operation) {
  return operation.state == State::Waiting && !operation.hung &&
         std::all_of(operation.after.begin(), operation.after.end(),
                     [](const OperationPtr& before) { return before->state == State::Done; });
}

std::unordered_set<uint64_t> with_predecessors(const OperationPtr& target) {
  std::unordered_set<uint64_t> seen;
  std::vector<const Operation*> waiting{target.get()};
  while (!waiting.empty()) {
    const Operation* operation = waiting.back();
    waiting.pop_back();
    if (operation->state == State::Done || !seen.insert(operation->id).second) continue;
    for (const OperationPtr& before : operation->after) waiting.push_back(before.get());
  }
  return seen;
}

bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}
}  // namespace

uint64_t Queue::random(uint64_t below) { return next_random(random_) % below; }

OperationPtr Queue::add(Work work, std::vector<OperationPtr> after, const char* origin) {
  auto operation = std::make_shared<Operation>();
  operation->id = driver().next_id++;
  operation->work = std::move(work);
  operation->origin = origin;
  std::erase_if(after, [](const OperationPtr& before) { return before == nullptr || before->state == State::Done; });
  operation->after = std::move(after);
  if (auto* copy = std::get_if<CopyWork>(&operation->work)) {
    if (copy->from.host && copy->from.pinned && !copy->to.host) note_source(*copy);
    if (copy->to.host && !copy->from.host) {
      operation->poison_due = true;
      poison(*operation);
    }
  }
  check_order(operation);
  pending_.push_back(operation);
  return operation;
}

// Whoever made a synchronous copy takes it for done; another stream's work must still come after the null stream's.
void Queue::check_order(const OperationPtr& operation) {
  for (const OperationPtr& earlier : pending_) {
    const auto* copy = std::get_if<CopyWork>(&earlier->work);
    if (copy == nullptr || !copy->looks_done) continue;
    if (!uses(operation->work, ranges(earlier->work).front()) || comes_after(operation, earlier)) continue;
    finding("copy-not-ordered",
            "work in a non-blocking stream uses what a synchronous copy from pageable memory may still be bringing",
            operation->origin + ": " + describe(operation->work) + " after " + earlier->origin + ": " +
                describe(earlier->work));
  }
}

// A host target is unreadable from now on, unless an operation before this one has yet to read it or is to write it.
void Queue::poison(Operation& operation) {
  const auto& copy = std::get<CopyWork>(operation.work);
  const Range target = ranges(operation.work).front();
  for (const OperationPtr& other : pending_) {
    if (other->id >= operation.id) break;
    for (const Range& range : ranges(other->work)) {
      if (range.host && overlap(range.address, range.bytes, target.address, target.bytes)) return;
    }
  }
  poison_target(copy);
  operation.poison_due = false;
}

void Queue::finish(const OperationPtr& operation) {
  operation->state = State::Done;
  operation->after.clear();
  operation->finished = std::chrono::steady_clock::now();
  std::erase(pending_, operation);
  for (const OperationPtr& other : pending_) {
    if (other->poison_due && other->state == State::Waiting) poison(*other);
  }
  driver().changed.notify_all();
}

void Queue::execute(Call& call, const OperationPtr& operation) {
  Driver& state = driver();
  operation->state = State::Running;
  if (const auto* host = std::get_if<HostWork>(&operation->work)) {
    // On a thread of the driver's, where no driver call is allowed. Whoever waits goes on with other streams.
    std::thread([this, operation, work = *host] {
      thread_state().in_host_function = true;
      work.function(work.data);
      std::lock_guard lock(driver().lock);
      finish(operation);
    }).detach();
    return;
  }
  if (const auto* free = std::get_if<FreeWork>(&operation->work)) release_block(free->base);
  uint64_t launch = 0;
  int result = 0;
  if (std::holds_alternative<KernelWork>(operation->work)) {
    launch = ++state.launches;
    if (hangs(launch)) {
      operation->state = State::Waiting;
      operation->hung = true;
      return;
    }
    result = failed_launch(launch);
  }
  Footprint footprint;
  if (result == 0 && !std::holds_alternative<EmptyWork>(operation->work)) {
    busy_ = true;
    call.lock.unlock();
    try {
      footprint = carry_out(operation->work, launch, operation->origin);
    } catch (const Fault& raised) {
      result = raised.result;
    } catch (const Unsupported&) {
      result = kLaunchFailed;
    } catch (const std::bad_alloc&) {
      finding("unsupported", "the host ran out of memory", describe(operation->work));
      result = kLaunchFailed;
    }
    call.lock.lock();
    busy_ = false;
  }
  if (operation->run != nullptr) note_run(*operation, footprint);
  if (result == 0) count(operation->work);
  finish(operation);
  if (result != 0) {
    state.sticky = result;
    abandon();
    write_report();
  }
}

// What a graph's node has touched, and that it was one.
void Queue::note_run(const Operation& operation, const Footprint& footprint) {
  note_footprint(*operation.run, operation.work, footprint);
  const auto* kernel = std::get_if<KernelWork>(&operation.work);
  if (kernel == nullptr) return;
  KernelCounters replay;
  replay.replays = 1;
  merge_counters(kernel->function->kernel->name, replay);
}

void Queue::abandon() {
  for (const OperationPtr& operation : pending_) {
    if (operation->state == State::Waiting) {
      operation->state = State::Done;
      operation->after.clear();
    }
  }
  std::erase_if(pending_, [](const OperationPtr& operation) { return operation->state == State::Done; });
  driver().changed.notify_all();
}

// One operation, if any may run and none does: of those that are needed, or of the others, where there are such.
bool Queue::step(Call& call, const Needed* needed, bool needed_first) {
  if (busy_) return false;
  std::vector<OperationPtr> choices;
  for (const OperationPtr& operation : pending_) {
    if (ready(*operation)) choices.push_back(operation);
  }
  if (choices.empty()) return false;
  if (needed != nullptr) {
    const auto rest = std::stable_partition(choices.begin(), choices.end(), [&](const OperationPtr& operation) {
      return (needed->count(operation->id) != 0) == needed_first;
    });
    if (rest != choices.begin()) choices.erase(rest, choices.end());
  }
  const OperationPtr chosen = choices[random(choices.size())];
  execute(call, chosen);
  return true;
}

bool Queue::wait(Call& call, const OperationPtr& target) {
  Driver& state = driver();
  if (target == nullptr) return state.sticky == 0;
  const Needed needed = with_predecessors(target);
  const int manner = static_cast<int>(random(kManners));
  while (target->state != State::Done && state.sticky == 0) {
    const bool ran = manner == kAny ? step(call) : step(call, &needed, manner == kNeededFirst);
    if (!ran) state.changed.wait(call.lock);
  }
  if (config().report_at_waits) write_report();
  return state.sticky == 0;
}

bool Queue::poll(Call& call, const OperationPtr& target) {
  if (target == nullptr || target->state == State::Done) return true;
  uint64_t steps = random(3);
  if (steps == 0 && idle_poll_) steps = 1;  // whoever asks often enough gets there
  idle_poll_ = steps == 0;
  for (; steps > 0 && target->state != State::Done && driver().sticky == 0; steps--) {
    if (!step(call)) break;
  }
  const bool done = target->state == State::Done;
  if (done && config().report_at_waits) write_report();
  return done;
}

void Queue::drain(Call& call) {
  Driver& state = driver();
  while (!pending_.empty() && state.sticky == 0) {
    if (!step(call)) state.changed.wait(call.lock);
  }
  if (config().report_at_waits) write_report();
}

void Queue::limit(Call& call) {
  while (pending_.size() > kPendingLimit && driver().sticky == 0) {
    if (!step(call)) driver().changed.wait(call.lock);
  }
}

bool comes_after(const OperationPtr& later, const OperationPtr& earlier) {
  if (earlier == nullptr || earlier->state == State::Done) return true;
  return later != nullptr && with_predecessors(later).count(earlier->id) != 0;
}

// In its own stream what came last; across the null stream, that of the other side too.
std::vector<OperationPtr> predecessors(Stream& stream) {
  std::vector<OperationPtr> before{stream.last};
  Context& context = *stream.context;
  if (stream.blocking()) before.push_back(context.legacy.last);
  if (stream.legacy) {
    driver().streams.each([&](Stream& other) {
      if (other.context == &context && other.blocking()) before.push_back(other.last);
    });
    for (const auto& [thread, other] : context.per_thread) before.push_back(other->last);
    std::erase_if(context.orphans, [](const OperationPtr& orphan) { return orphan->state == State::Done; });
    before.insert(before.end(), context.orphans.begin(), context.orphans.end());
  }
  return before;
}

Stream& stream_of(Call& call, void* handle) {
  Driver& state = driver();
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > 2) return state.streams.get(handle);
  Context& context = call.context();
  if (number < 2) return context.legacy;
  auto& own = context.per_thread[std::this_thread::get_id()];
  if (own == nullptr) {
    own = std::make_unique<Stream>();
    own->context = &context;
    own->id = state.next_id++;
  }
  return *own;
}

OperationPtr enqueue(Call& call, Stream& stream, Work work) {
  check_implicit(stream);
  if (stream.capture != nullptr) {
    add_captured(call, stream, std::move(work));
    return nullptr;
  }
  Queue& queue = driver().queue;
  queue.limit(call);
  require(driver().sticky == 0, driver().sticky);
  stream.last = queue.add(std::move(work), predecessors(stream), call.name);
  return stream.last;
}
}  // namespace soft
