// Graphs: nodes of frozen work, the executable form that is launched, and the capture that makes one of a stream.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "stream.hpp"

namespace soft {

struct GraphNode {
  Work work;
  std::vector<GraphNode*> after;
  std::vector<void*>
      arguments;  // into the parameters of a kernel's work, as cuGraphKernelNodeGetParams hands them out
};

struct Graph {
  std::vector<std::unique_ptr<GraphNode>> nodes;
  Context* context = nullptr;
  bool captured = false;  // still being captured: nobody may touch it
};

struct UsedBlock {
  uint64_t base, serial;
};  // an allocation that a node refers to, as it was at instantiation

struct ExecNode {
  const GraphNode* origin;  // what its handle in the graph was
  Work work;
  std::vector<size_t> after;
  std::vector<UsedBlock> blocks;
};

// One launch of an executable graph: what it has touched so far, and the launches in flight beside it, unordered.
struct GraphRun {
  std::string name;  // "cuGraphLaunch of a graph of 12 nodes"
  OperationPtr end;
  std::set<uint64_t> written, read;  // pages of 4 KB
  std::vector<std::shared_ptr<GraphRun>> beside;
};

struct GraphExec {
  Context* context = nullptr;
  std::vector<ExecNode> nodes;        // each after its predecessors
  uint64_t cost = 0;                  // the device memory it holds
  std::shared_ptr<GraphRun> running;  // its newest launch
};

struct Capture {
  uint64_t id = 0;
  int mode = 0;  // 0 global, 1 of the thread, 2 relaxed
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Stream*> streams;  // the origin and those that joined
};

// Refuses a call that a capture of this thread (or a global one of another) forbids, and invalidates those captures.
bool capture_forbids(Call& call);
// Before a stream is used: 906 where it is the null stream and a blocking stream captures.
void check_implicit(Stream& stream);
void add_captured(Call& call, Stream& stream, Work work);
void invalidate(Capture& capture);
void leave_capture(Capture& capture);  // its streams capture no more

std::vector<ExecNode> flatten(Call& call, const Graph& graph);           // in an order that dependencies allow
std::unique_ptr<GraphExec> instantiate(Call& call, const Graph& graph);  // throws Failure
void launch_graph(Call& call, GraphExec& executable, Stream& stream);
void note_footprint(GraphRun& run, const Work& work, const Footprint& kernel);  // as each of its nodes ends
std::vector<UsedBlock> used_blocks(const Work& work);
}  // namespace soft
