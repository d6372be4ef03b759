// Graphs built by hand: their nodes and edges.
#include <algorithm>

#include "api_launch.hpp"
#include "driver.hpp"
#include "findings.hpp"

namespace soft {
CopyWork copy_of_node(const Copy3D& copy);  // api_copy.cpp
}  // namespace soft

using namespace soft;

namespace {

Graph& graph_of(void* handle) {
  Graph& graph = driver().graphs.get(handle, kInvalidValue);
  require(!graph.captured, kIllegalState);  // it belongs to a capture
  return graph;
}

GraphNode* find_node(const Graph& graph, const void* handle) {
  for (const auto& node : graph.nodes) {
    if (node.get() == handle) return node.get();
  }
  return nullptr;
}

GraphNode& node_of(const void* handle, Graph** owner = nullptr) {
  GraphNode* found = nullptr;
  driver().graphs.each([&](Graph& graph) {
    GraphNode* node = found == nullptr ? find_node(graph, handle) : nullptr;
    if (node == nullptr) return;
    found = node;
    if (owner != nullptr) *owner = &graph;
  });
  require(found != nullptr, kInvalidValue);
  return *found;
}

std::vector<GraphNode*> nodes_of(const Graph& graph, void* const* handles, size_t count) {
  require(count == 0 || handles != nullptr, kInvalidValue);
  std::vector<GraphNode*> nodes;
  for (size_t index = 0; index < count; index++) {
    nodes.push_back(find_node(graph, handles[index]));
    require(nodes.back() != nullptr, kInvalidValue);
  }
  return nodes;
}

template <class MakeWork>
int add_node(const char* name, void** out, void* handle, void* const* before, size_t count, MakeWork make) {
  return call(name, kContext, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    Graph& graph = graph_of(handle);
    auto node = std::make_unique<GraphNode>();
    node->after = nodes_of(graph, before, count);
    node->work = make();
    *out = node.get();
    graph.nodes.push_back(std::move(node));
    return kSuccess;
  });
}

KernelWork kernel_of_node(const KernelNodeParameters* given) {
  require(given != nullptr, kInvalidValue);
  return kernel_work(function_of(given->function != nullptr ? given->function : given->kernel), given->grid,
                     given->block, given->shared_bytes, given->parameters, given->extra);
}

FillWork fill_of_node(const MemsetNodeParameters* given) {
  require(given != nullptr, kInvalidValue);
  const uint32_t element = given->element_bytes;
  require(element == 1 || element == 2 || element == 4, kInvalidValue);
  const FillWork fill{given->to, given->pitch, given->value, static_cast<int>(element), given->width, given->height};
  require(fill.width > 0 && fill.rows > 0, kInvalidValue);
  check(fill);
  return fill;
}

HostWork host_of_node(const HostNodeParameters* given) {
  require(given != nullptr && given->function != nullptr, kInvalidValue);
  return HostWork{given->function, given->data};
}

template <class T>
T& work_of(GraphNode& node) {
  T* work = std::get_if<T>(&node.work);
  require(work != nullptr, kInvalidValue);
  return *work;
}

int type_of(const Work& work) {  // CUgraphNodeType
  if (std::holds_alternative<KernelWork>(work)) return 0;
  if (std::holds_alternative<CopyWork>(work)) return 1;
  if (std::holds_alternative<FillWork>(work)) return 2;
  return std::holds_alternative<HostWork>(work) ? 3 : 5;
}

// Lists come in two calls: how many, then those. `out` null: only the count.
void give_list(const std::vector<GraphNode*>& nodes, void** out, size_t* count) {
  require(count != nullptr, kInvalidValue);
  if (out != nullptr) {
    for (size_t index = 0; index < *count; index++) out[index] = index < nodes.size() ? nodes[index] : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
}

std::vector<GraphNode*> all_nodes(const Graph& graph, bool roots_only) {
  std::vector<GraphNode*> nodes;
  for (const auto& node : graph.nodes) {
    if (!roots_only || node->after.empty()) nodes.push_back(node.get());
  }
  return nodes;
}

void clear_edge_data(void* edges, size_t count) {
  // CUgraphEdgeData: eight bytes, all zero for a plain edge.
  if (edges != nullptr) std::fill_n(static_cast<uint64_t*>(edges), count, 0);
}

int list_edges(void* handle, void** from, void** to, void* edge_data, size_t* count) {
  return call("cuGraphGetEdges", kInitialized, [&](Call&) -> int {
    std::vector<GraphNode*> sources, targets;
    for (const auto& node : driver().graphs.get(handle, kInvalidValue).nodes) {
      for (GraphNode* before : node->after) {
        sources.push_back(before);
        targets.push_back(node.get());
      }
    }
    require(count != nullptr && (from == nullptr) == (to == nullptr), kInvalidValue);
    size_t again = *count;
    give_list(sources, from, count);
    give_list(targets, to, from == nullptr ? count : &again);
    clear_edge_data(edge_data, from == nullptr ? 0 : *count);
    return kSuccess;
  });
}

int list_dependencies(void* handle, void** out, void* edge_data, size_t* count) {
  return call("cuGraphNodeGetDependencies", kInitialized, [&](Call&) -> int {
    give_list(node_of(handle).after, out, count);
    clear_edge_data(edge_data, out == nullptr ? 0 : *count);
    return kSuccess;
  });
}

int add_dependencies(void* handle, void* const* from, void* const* to, size_t count) {
  return call("cuGraphAddDependencies", kInitialized, [&](Call&) -> int {
    Graph& graph = graph_of(handle);
    const auto sources = nodes_of(graph, from, count), targets = nodes_of(graph, to, count);
    for (size_t index = 0; index < count; index++) {
      auto& after = targets[index]->after;
      require(std::find(after.begin(), after.end(), sources[index]) == after.end(), kInvalidValue);
      after.push_back(sources[index]);
    }
    return kSuccess;
  });
}
}  // namespace

SOFT_API int cuGraphCreate(void** out, unsigned flags) {
  return call("cuGraphCreate", kContext, [&](Call& call) -> int {
    require(out != nullptr && flags == 0, kInvalidValue);
    auto graph = std::make_unique<Graph>();
    graph->context = &call.context();
    *out = driver().graphs.add(std::move(graph));
    return kSuccess;
  });
}

SOFT_API int cuGraphDestroy(void* handle) {
  return call("cuGraphDestroy", kInitialized, [&](Call&) -> int {
    driver().graphs.remove(&graph_of(handle));
    return kSuccess;
  });
}

SOFT_API int cuGraphAddEmptyNode(void** out, void* graph, void* const* before, size_t count) {
  return add_node("cuGraphAddEmptyNode", out, graph, before, count, [] { return EmptyWork{}; });
}
SOFT_API int cuGraphAddKernelNode_v2(void** out, void* graph, void* const* before, size_t count,
                                     const KernelNodeParameters* given) {
  return add_node("cuGraphAddKernelNode", out, graph, before, count, [&] { return kernel_of_node(given); });
}
SOFT_API int cuGraphAddMemcpyNode(void** out, void* graph, void* const* before, size_t count, const Copy3D* given,
                                  void*) {
  return add_node("cuGraphAddMemcpyNode", out, graph, before, count, [&] {
    require(given != nullptr, kInvalidValue);
    return copy_of_node(*given);
  });
}
SOFT_API int cuGraphAddMemsetNode(void** out, void* graph, void* const* before, size_t count,
                                  const MemsetNodeParameters* given, void*) {
  return add_node("cuGraphAddMemsetNode", out, graph, before, count, [&] { return fill_of_node(given); });
}
SOFT_API int cuGraphAddHostNode(void** out, void* graph, void* const* before, size_t count,
                                const HostNodeParameters* given) {
  return add_node("cuGraphAddHostNode", out, graph, before, count, [&] { return host_of_node(given); });
}

SOFT_API int cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  return add_dependencies(graph, from, to, count);
}
SOFT_API int cuGraphAddDependencies_v2(void* graph, void* const* from, void* const* to, const void* edges,
                                       size_t count) {
  if (edges != nullptr) {
    return call("cuGraphAddDependencies with edge data", kAlways, [](Call& call) -> int { unsupported(call.name); });
  }
  return add_dependencies(graph, from, to, count);
}

SOFT_API int cuGraphGetNodes(void* graph, void** out, size_t* count) {
  return call("cuGraphGetNodes", kInitialized, [&](Call&) -> int {
    give_list(all_nodes(driver().graphs.get(graph, kInvalidValue), false), out, count);
    return kSuccess;
  });
}
SOFT_API int cuGraphGetRootNodes(void* graph, void** out, size_t* count) {
  return call("cuGraphGetRootNodes", kInitialized, [&](Call&) -> int {
    give_list(all_nodes(driver().graphs.get(graph, kInvalidValue), true), out, count);
    return kSuccess;
  });
}
SOFT_API int cuGraphGetEdges(void* graph, void** from, void** to, size_t* count) {
  return list_edges(graph, from, to, nullptr, count);
}
SOFT_API int cuGraphGetEdges_v2(void* graph, void** from, void** to, void* edges, size_t* count) {
  return list_edges(graph, from, to, edges, count);
}
SOFT_API int cuGraphNodeGetDependencies(void* node, void** out, size_t* count) {
  return list_dependencies(node, out, nullptr, count);
}
SOFT_API int cuGraphNodeGetDependencies_v2(void* node, void** out, void* edges, size_t* count) {
  return list_dependencies(node, out, edges, count);
}

SOFT_API int cuGraphNodeGetType(void* node, int* out) {
  return call("cuGraphNodeGetType", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    *out = type_of(node_of(node).work);
    return kSuccess;
  });
}

SOFT_API int cuGraphKernelNodeGetParams_v2(void* handle, KernelNodeParameters* out) {
  return call("cuGraphKernelNodeGetParams", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    GraphNode& node = node_of(handle);
    auto& work = work_of<KernelWork>(node);
    node.arguments.clear();
    for (const Parameter& parameter : work.function->kernel->parameters) {
      node.arguments.push_back(&work.parameters[parameter.offset]);
    }
    *out = {work.function.get(), {}, {}, work.shared_bytes, node.arguments.data(), nullptr, nullptr, nullptr};
    std::copy_n(work.grid, 3, out->grid);
    std::copy_n(work.block, 3, out->block);
    return kSuccess;
  });
}

SOFT_API int cuGraphKernelNodeSetParams_v2(void* handle, const KernelNodeParameters* given) {
  return call("cuGraphKernelNodeSetParams", kInitialized, [&](Call&) -> int {
    work_of<KernelWork>(node_of(handle)) = kernel_of_node(given);
    return kSuccess;
  });
}

SOFT_API int cuGraphMemsetNodeGetParams(void* handle, MemsetNodeParameters* out) {
  return call("cuGraphMemsetNodeGetParams", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    const auto& fill = work_of<FillWork>(node_of(handle));
    *out = {fill.to, fill.pitch, fill.value, static_cast<uint32_t>(fill.element_bytes), fill.width, fill.rows};
    return kSuccess;
  });
}
