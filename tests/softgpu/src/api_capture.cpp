// Beginning, ending and asking about stream capture.
#include <unordered_set>

#include "counters.hpp"
#include "driver.hpp"

using namespace soft;

namespace {

// Every node must lie before the origin's newest: what a joined stream did and nobody waited for is left hanging.
bool joined(const Capture& capture) {
  std::unordered_set<const GraphNode*> reached;
  std::vector<GraphNode*> waiting = capture.origin->tail;
  while (!waiting.empty()) {
    const GraphNode* node = waiting.back();
    waiting.pop_back();
    if (reached.insert(node).second) waiting.insert(waiting.end(), node->after.begin(), node->after.end());
  }
  return reached.size() == capture.graph->nodes.size();
}

int end_capture(Call& call, void* handle, void** out) {
  require(out != nullptr, kInvalidValue);
  *out = nullptr;
  Stream& stream = stream_of(call, handle);
  require(stream.capture != nullptr, kIllegalState);
  const std::shared_ptr<Capture> capture = stream.capture;
  require(capture->mode == 2 || capture->thread == std::this_thread::get_id(), kCaptureWrongThread);
  if (capture->origin != &stream) {
    invalidate(*capture);
    return kCaptureUnmatched;
  }
  const bool whole = joined(*capture);
  Graph* graph = capture->graph;
  leave_capture(*capture);
  if (capture->invalid || !whole) {
    driver().graphs.remove(graph);
    return capture->invalid ? kCaptureInvalidated : kCaptureUnjoined;
  }
  graph->captured = false;
  *out = graph;
  return kSuccess;
}

enum Status : int { kNone, kActive, kInvalidated };

Status status_of(const Stream& stream) {
  return stream.capture == nullptr ? kNone : stream.capture->invalid ? kInvalidated : kActive;
}

struct CaptureInfo {
  int* status;
  uint64_t* id;
  void** graph;
  const void** nodes;
  const void** edges;
  size_t* count;
};

int capture_info(void* handle, const CaptureInfo& out) {
  return call("cuStreamGetCaptureInfo", kContext, [&](Call& call) -> int {
    require(out.status != nullptr, kInvalidValue);
    Stream& stream = stream_of(call, handle);
    check_implicit(stream);
    *out.status = status_of(stream);
    if (*out.status != kActive) return kSuccess;
    if (out.id != nullptr) *out.id = stream.capture->id;
    if (out.graph != nullptr) *out.graph = stream.capture->graph;
    if (out.nodes != nullptr) *out.nodes = stream.tail.data();
    if (out.edges != nullptr) {
      // CUgraphEdgeData is eight bytes, all zero for a full dependency.
      static thread_local std::vector<uint64_t> plain;
      plain.assign(stream.tail.size(), 0);
      *out.edges = plain.data();
    }
    if (out.count != nullptr) *out.count = stream.tail.size();
    return kSuccess;
  });
}
}  // namespace

SOFT_API int cuStreamBeginCapture_v2(void* handle, int mode) {
  return call("cuStreamBeginCapture", kContext, [&](Call& call) -> int {
    require(mode >= 0 && mode <= 2, kInvalidValue);
    Stream& stream = stream_of(call, handle);
    require(!stream.legacy, kCaptureUnsupported);
    require(stream.capture == nullptr, kIllegalState);
    Driver& state = driver();
    auto capture = std::make_shared<Capture>();
    capture->id = state.next_id++;
    capture->mode = mode;
    capture->origin = &stream;
    capture->thread = std::this_thread::get_id();
    capture->streams = {&stream};
    capture->graph = state.graphs.add(std::make_unique<Graph>());
    capture->graph->context = stream.context;
    capture->graph->captured = true;
    stream.capture = capture;
    stream.tail.clear();
    state.captures.push_back(std::move(capture));
    driver_counters().captures++;
    return kSuccess;
  });
}

SOFT_API int cuStreamEndCapture(void* handle, void** out) {
  return call("cuStreamEndCapture", kContext, [&](Call& call) -> int { return end_capture(call, handle, out); });
}

SOFT_API int cuStreamIsCapturing(void* handle, int* out) {
  return call("cuStreamIsCapturing", kContext, [&](Call& call) -> int {
    require(out != nullptr, kInvalidValue);
    Stream& stream = stream_of(call, handle);
    check_implicit(stream);
    *out = status_of(stream);
    return kSuccess;
  });
}

SOFT_API int cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void** graph, const void** nodes,
                                       size_t* count) {
  return capture_info(stream, {status, id, graph, nodes, nullptr, count});
}

SOFT_API int cuStreamGetCaptureInfo_v3(void* stream, int* status, uint64_t* id, void** graph, const void** nodes,
                                       const void** edges, size_t* count) {
  return capture_info(stream, {status, id, graph, nodes, edges, count});
}

SOFT_API int cuThreadExchangeStreamCaptureMode(int* mode) {
  return call("cuThreadExchangeStreamCaptureMode", kInitialized, [&](Call&) -> int {
    require(mode != nullptr && *mode >= 0 && *mode <= 2, kInvalidValue);
    std::swap(*mode, thread_state().capture_mode);
    return kSuccess;
  });
}
