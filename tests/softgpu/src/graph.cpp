// Capture, instantiation and launch of graphs, and what may go wrong with each.
#include "graph.hpp"

#include <algorithm>

#include "config.hpp"
#include "counters.hpp"
#include "driver.hpp"
#include "findings.hpp"
#include "memory_arena.hpp"

namespace soft {
namespace {

constexpr int kFootprintShift = 12;            // of a footprint's pages
constexpr uint64_t kExecutableCost = 1 << 20;  // device memory that an executable graph takes, about

bool captures_blocking(const Capture& capture) {
  return std::any_of(capture.streams.begin(), capture.streams.end(),
                     [](const Stream* stream) { return stream->blocking(); });
}

void check_first_use(Call& call, const KernelWork& kernel) {
  if (kernel.function->warm) return;
  finding(
      "first-use-in-capture",
      "the function was never launched, loaded or asked about before: lazy loading would load it inside the capture",
      std::string(call.name) + ": kernel " + kernel.function->kernel->name);
}

void check_pageable(Call& call, const Work& work) {
  const auto* copy = std::get_if<CopyWork>(&work);
  if (copy == nullptr) return;
  if ((copy->from.host && !copy->from.pinned) || (copy->to.host && !copy->to.pinned)) {
    finding("pageable-in-graph", "a graph's copy node reads or writes pageable host memory",
            std::string(call.name) + ": " + describe(work));
  }
}

bool ordered(const std::vector<OperationPtr>& before, const OperationPtr& earlier) {
  return std::any_of(before.begin(), before.end(), [&](const OperationPtr& operation) {
    return operation != nullptr && comes_after(operation, earlier);
  });
}

// What two runs touched is compared until both have ended.
void forget_ended(std::vector<std::shared_ptr<GraphRun>>& runs) {
  const auto ended = [](const std::shared_ptr<GraphRun>& run) { return run->end->state == State::Done; };
  std::erase_if(runs, [&](const std::shared_ptr<GraphRun>& run) {
    const bool over = ended(run) && std::all_of(run->beside.begin(), run->beside.end(), ended);
    if (over) run->beside.clear();
    return over;
  });
}

const uint64_t* first_common(const std::set<uint64_t>& a, const std::set<uint64_t>& b) {
  for (const uint64_t& page : a) {
    if (b.count(page) != 0) return &page;
  }
  return nullptr;
}

bool still_there(const UsedBlock& used) {
  const auto found = driver().memory.find(used.base);
  return found != driver().memory.end() && found->second.serial == used.serial;
}

void check_alive(const ExecNode& node) {
  if (const auto* kernel = std::get_if<KernelWork>(&node.work); kernel != nullptr && kernel->function->unloaded) {
    finding("graph-unloaded-module", "the executable graph launches a kernel whose module was unloaded",
            describe(node.work));
    throw Failure{kInvalidHandle};
  }
  for (const UsedBlock& used : node.blocks) {
    if (!still_there(used)) {
      finding("graph-freed-memory", "the executable graph refers to device memory that was freed since",
              describe(node.work));
    }
  }
}
}  // namespace

bool capture_forbids(Call&) {
  const ThreadState& thread = thread_state();
  if (thread.capture_mode == 2) return false;
  bool forbidden = false;
  for (const auto& capture : driver().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool applies = own ? capture->mode != 2 : capture->mode == 0 && thread.capture_mode == 0;
    if (!applies) continue;
    invalidate(*capture);
    forbidden = true;
  }
  return forbidden;
}

void check_implicit(Stream& stream) {
  if (!stream.legacy) return;
  bool conflict = false;
  for (const auto& capture : driver().captures) {
    if (capture->origin->context != stream.context || !captures_blocking(*capture)) continue;
    invalidate(*capture);
    conflict = true;
  }
  require(!conflict, kCaptureImplicit);
}

void invalidate(Capture& capture) { capture.invalid = true; }

void leave_capture(Capture& capture) {
  Driver& state = driver();
  for (Stream* stream : capture.streams) {
    stream->capture.reset();
    stream->tail.clear();
  }
  std::erase_if(state.captures, [&](const auto& other) { return other.get() == &capture; });
}

void add_captured(Call& call, Stream& stream, Work work) {
  Capture& capture = *stream.capture;
  require(!capture.invalid, kCaptureInvalidated);
  if (const auto* kernel = std::get_if<KernelWork>(&work)) check_first_use(call, *kernel);
  check_pageable(call, work);
  auto node = std::make_unique<GraphNode>();
  node->work = std::move(work);
  node->after = stream.tail;
  stream.tail = {node.get()};
  capture.graph->nodes.push_back(std::move(node));
}

std::vector<UsedBlock> used_blocks(const Work& work) {
  std::vector<UsedBlock> used;
  for (const Range& range : ranges(work)) {
    uint64_t base;
    const DeviceBlock* block = range.host ? nullptr : find_block(range.address, &base);
    if (block != nullptr) used.push_back({base, block->serial});
  }
  return used;
}

std::vector<ExecNode> flatten(Call& call, const Graph& graph) {
  std::vector<ExecNode> flat;
  std::vector<const GraphNode*> placed;
  std::vector<const GraphNode*> left;
  for (const auto& node : graph.nodes) left.push_back(node.get());
  const auto index = [&](const GraphNode* node) {
    return std::find(placed.begin(), placed.end(), node) - placed.begin();
  };
  while (!left.empty()) {
    const size_t before = left.size();
    std::erase_if(left, [&](const GraphNode* node) {
      ExecNode made{node, node->work, {}, used_blocks(node->work)};
      for (const GraphNode* predecessor : node->after) {
        const size_t at = index(predecessor);
        if (at == placed.size()) return false;
        made.after.push_back(at);
      }
      check_pageable(call, node->work);
      placed.push_back(node);
      flat.push_back(std::move(made));
      return true;
    });
    require(left.size() < before, kInvalidValue);  // a cycle
  }
  return flat;
}

std::unique_ptr<GraphExec> instantiate(Call& call, const Graph& graph) {
  require(config().graph_instantiate_error == 0, config().graph_instantiate_error);
  auto executable = std::make_unique<GraphExec>();
  executable->context = graph.context;
  executable->nodes = flatten(call, graph);
  executable->cost = allocate_block(*graph.context, kExecutableCost, "executable graph");
  driver_counters().instantiations++;
  return executable;
}

void note_footprint(GraphRun& run, const Work& work, const Footprint& kernel) {
  run.written.insert(kernel.written.begin(), kernel.written.end());
  run.read.insert(kernel.read.begin(), kernel.read.end());
  if (!std::holds_alternative<KernelWork>(work)) {
    for (const Range& range : ranges(work)) {
      if (range.host || range.bytes == 0) continue;
      for (uint64_t page = range.address >> kFootprintShift;
           page <= (range.address + range.bytes - 1) >> kFootprintShift; page++) {
        (range.written ? run.written : run.read).insert(page);
      }
    }
  }
  for (const auto& other : run.beside) {
    const uint64_t* page = first_common(run.written, other->written);
    if (page == nullptr) page = first_common(run.written, other->read);
    if (page == nullptr) page = first_common(run.read, other->written);
    if (page == nullptr) continue;
    finding("graphs-share-memory",
            "two graphs in flight, neither ordered after the other, touch the 4 KB at " +
                hex_address(*page << kFootprintShift) + ", and one writes there",
            run.name + " beside " + other->name + ": " + describe(work));
  }
}

void launch_graph(Call& call, GraphExec& executable, Stream& stream) {
  Driver& state = driver();
  check_implicit(stream);
  if (stream.capture != nullptr) unsupported("cuGraphLaunch into a capturing stream: child graphs");
  for (const ExecNode& node : executable.nodes) check_alive(node);
  state.queue.limit(call);
  require(state.sticky == 0, state.sticky);
  std::vector<OperationPtr> before = predecessors(stream);
  const auto run = std::make_shared<GraphRun>();
  run->name = std::string(call.name) + " of a graph of " + std::to_string(executable.nodes.size()) + " nodes";
  forget_ended(state.runs);
  for (const auto& other : state.runs) {
    if (other->end->state == State::Done || ordered(before, other->end)) continue;
    if (other == executable.running) {
      finding("graph-relaunch", "the executable graph was launched while an earlier launch of it may still run",
              run->name);
    } else {
      run->beside.push_back(other);
      other->beside.push_back(run);
    }
  }
  if (executable.running != nullptr) before.push_back(executable.running->end);
  const OperationPtr begin = state.queue.add(EmptyWork{}, before, call.name);
  std::vector<OperationPtr> placed;
  for (const ExecNode& node : executable.nodes) {
    std::vector<OperationPtr> after{begin};
    for (const size_t index : node.after) after.push_back(placed[index]);
    placed.push_back(state.queue.add(node.work, std::move(after), call.name));
    placed.back()->run = run;
    if (std::holds_alternative<KernelWork>(node.work)) driver_counters().graph_kernel_nodes++;
  }
  placed.push_back(begin);
  stream.last = run->end = state.queue.add(EmptyWork{}, std::move(placed), call.name);
  executable.running = run;
  state.runs.push_back(run);
  driver_counters().graph_launches++;
}
}  // namespace soft
