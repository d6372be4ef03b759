// Executable graphs: instantiated, launched, updated.
#include <algorithm>

#include "api_launch.hpp"
#include "config.hpp"
#include "driver.hpp"
#include "findings.hpp"

using namespace soft;

namespace {

enum UpdateResult : int { kUpdated = 0, kTopologyChanged = 2, kNodeTypeChanged = 3 };

int make_executable(const char* name, void** out, void* handle, uint64_t flags) {
  return call(name, kContext | kUnsafe | kIdle, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    if ((flags & ~uint64_t{0xb}) != 0) unsupported("graph instantiation flags " + std::to_string(flags));
    Graph& graph = driver().graphs.get(handle, kInvalidValue);
    require(!graph.captured, kIllegalState);
    *out = driver().executables.add(instantiate(call, graph));
    return kSuccess;
  });
}

// What may be updated in place: the same nodes of the same kinds after the same others.
int compare(const std::vector<ExecNode>& now, const std::vector<ExecNode>& next, GraphUpdateResult& result) {
  result = {kUpdated, nullptr, nullptr};
  if (now.size() != next.size()) return result.result = kTopologyChanged;
  for (size_t index = 0; index < now.size(); index++) {
    result.error_node = const_cast<GraphNode*>(next[index].origin);
    if (now[index].work.index() != next[index].work.index()) return result.result = kNodeTypeChanged;
    if (now[index].after != next[index].after) return result.result = kTopologyChanged;
  }
  result.error_node = nullptr;
  return kUpdated;
}
}  // namespace

SOFT_API int cuGraphInstantiateWithFlags(void** out, void* graph, uint64_t flags) {
  return make_executable("cuGraphInstantiate", out, graph, flags);
}

SOFT_API int cuGraphInstantiateWithParams(void** out, void* graph, GraphInstantiateParameters* given) {
  if (given == nullptr) return kInvalidValue;
  const int result = make_executable("cuGraphInstantiateWithParams", out, graph, given->flags);
  given->error_node = nullptr;
  given->result = result == kSuccess ? 0 : 1;
  return result;
}

SOFT_API int cuGraphLaunch(void* handle, void* stream) {
  return call("cuGraphLaunch", kContext, [&](Call& call) -> int {
    launch_graph(call, driver().executables.get(handle, kInvalidValue), stream_of(call, stream));
    return kSuccess;
  });
}

SOFT_API int cuGraphUpload(void* handle, void* stream) {
  return call("cuGraphUpload", kContext, [&](Call& call) -> int {
    driver().executables.get(handle, kInvalidValue);
    Stream& target = stream_of(call, stream);
    require(target.capture == nullptr, kCaptureUnsupported);
    return kSuccess;
  });
}

// A launch in flight goes on to its end, and only then is the memory free (the call's description).
SOFT_API int cuGraphExecDestroy(void* handle) {
  return call("cuGraphExecDestroy", kContext | kIdle, [&](Call& call) -> int {
    Driver& state = driver();
    GraphExec& executable = state.executables.get(handle, kInvalidValue);
    if (executable.running != nullptr && executable.running->end->state != State::Done) {
      state.queue.add(FreeWork{executable.cost}, {executable.running->end}, call.name);
    } else {
      release_block(executable.cost);
    }
    state.executables.remove(&executable);
    return kSuccess;
  });
}

SOFT_API int cuGraphExecGetFlags(void* handle, uint64_t* flags) {
  return call("cuGraphExecGetFlags", kContext, [&](Call&) -> int {
    require(flags != nullptr, kInvalidValue);
    driver().executables.get(handle, kInvalidValue);
    *flags = 0;
    return kSuccess;
  });
}

SOFT_API int cuGraphExecKernelNodeSetParams_v2(void* handle, void* node, const KernelNodeParameters* given) {
  return call("cuGraphExecKernelNodeSetParams", kContext, [&](Call&) -> int {
    require(given != nullptr, kInvalidValue);
    auto& nodes = driver().executables.get(handle, kInvalidValue).nodes;
    const auto found =
        std::find_if(nodes.begin(), nodes.end(), [&](const ExecNode& one) { return one.origin == node; });
    require(found != nodes.end() && std::holds_alternative<KernelWork>(found->work), kInvalidValue);
    found->work = kernel_work(function_of(given->function != nullptr ? given->function : given->kernel), given->grid,
                              given->block, given->shared_bytes, given->parameters, given->extra);
    found->blocks = used_blocks(found->work);
    return kSuccess;
  });
}

SOFT_API int cuGraphExecUpdate_v2(void* handle, void* graph_handle, GraphUpdateResult* out) {
  return call("cuGraphExecUpdate", kContext, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    GraphExec& executable = driver().executables.get(handle, kInvalidValue);
    const std::vector<ExecNode> next = flatten(call, driver().graphs.get(graph_handle, kInvalidValue));
    if (compare(executable.nodes, next, *out) != kUpdated) return kGraphExecUpdateFailure;
    for (size_t index = 0; index < next.size(); index++) {
      executable.nodes[index].work = next[index].work;
      executable.nodes[index].blocks = next[index].blocks;
    }
    return kSuccess;
  });
}
