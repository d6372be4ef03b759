// Sums what launches have measured, by kernel, and prints it.
#include "counters.hpp"

#include <mutex>

#include "findings_json.hpp"

namespace soft {
namespace {

std::mutex mutex;
std::map<std::string, KernelCounters> kernels;

void add(AccessCount& to, const AccessCount& from) {
  to.requests += from.requests;
  to.bytes += from.bytes;
  to.sectors += from.sectors;
  to.ideal += from.ideal;
}

std::string field(const char* name, uint64_t value) { return json_string(name) + ": " + std::to_string(value); }

std::string access_json(const AccessCount& count) {
  return field("requests", count.requests) + ", " + field("bytes", count.bytes) + ", " +
         field("sectors", count.sectors) + ", " + field("ideal", count.ideal);
}

std::string counts_json(const std::map<std::string, uint64_t>& counts) {
  std::string out;
  for (const auto& [name, count] : counts) out += (out.empty() ? "" : ", ") + field(name.c_str(), count);
  return "{" + out + "}";
}

std::string sites_json(const std::map<uint32_t, SiteCount>& sites) {
  std::string out;
  for (const auto& [line, site] : sites) {
    out += (out.empty() ? "\n    " : ",\n    ") + json_string(std::to_string(line)) + ": {\"text\": " +
           json_string(site.text) + ", \"source\": " + json_string(site.source) + ", " + access_json(site.count) +
           "}";
  }
  return "{" + out + "}";
}

std::string kernel_json(const KernelCounters& counters) {
  const std::pair<const char*, const AccessCount*> accesses[] = {
      {"global_load", &counters.global_load}, {"global_store", &counters.global_store},
      {"shared_load", &counters.shared_load}, {"shared_store", &counters.shared_store},
      {"local", &counters.local},             {"async_copy", &counters.async_copy},
      {"atomics", &counters.atomics}};
  std::string out = "{" + field("launches", counters.launches) + ", " + field("blocks", counters.blocks) + ", " +
                    field("warps", counters.warps) + ", " + field("replays", counters.replays) + ", " + field("lane_instructions", counters.lane_instructions) +
                    ",\n   \"instructions\": " + counts_json(counters.instructions);
  for (const auto& [name, count] : accesses) out += ",\n   " + json_string(name) + ": {" + access_json(*count) + "}";
  return out + ",\n   \"sites\": " + sites_json(counters.sites) + "}";
}

}  // namespace

void KernelCounters::add(const KernelCounters& other) {
  launches += other.launches;
  blocks += other.blocks;
  warps += other.warps;
  replays += other.replays;
  lane_instructions += other.lane_instructions;
  for (const auto& [opcode, count] : other.instructions) instructions[opcode] += count;
  soft::add(global_load, other.global_load);
  soft::add(global_store, other.global_store);
  soft::add(shared_load, other.shared_load);
  soft::add(shared_store, other.shared_store);
  soft::add(local, other.local);
  soft::add(async_copy, other.async_copy);
  soft::add(atomics, other.atomics);
  for (const auto& [line, site] : other.sites) {
    SiteCount& to = sites[line];
    if (to.text.empty()) to.text = site.text, to.source = site.source;
    soft::add(to.count, site.count);
  }
}

void merge_counters(const std::string& kernel, const KernelCounters& counters) {
  const std::lock_guard lock(mutex);
  kernels[kernel].add(counters);
}

DriverCounters& driver_counters() {
  static DriverCounters counters;
  return counters;
}

std::string counters_json() {
  const DriverCounters& driver = driver_counters();
  const std::lock_guard lock(mutex);
  const std::pair<const char*, uint64_t> fields[] = {{"launches", driver.launches},
                                                     {"graph_launches", driver.graph_launches},
                                                     {"graph_kernel_nodes", driver.graph_kernel_nodes},
                                                     {"captures", driver.captures},
                                                     {"instantiations", driver.instantiations},
                                                     {"h2d_bytes", driver.h2d_bytes},
                                                     {"d2h_bytes", driver.d2h_bytes},
                                                     {"d2d_bytes", driver.d2d_bytes},
                                                     {"memsets", driver.memsets},
                                                     {"h2d_async_bytes", driver.h2d_async_bytes},
                                                     {"d2h_async_bytes", driver.d2h_async_bytes},
                                                     {"allocations", driver.allocations},
                                                     {"synchronizations", driver.synchronizations}};
  std::string out = "{\"driver\": {";
  for (const auto& [name, value] : fields) out += (out.back() == '{' ? "" : ", ") + field(name, value);
  out += "},\n \"calls\": " + counts_json(driver.calls) + ",\n \"kernels\": {";
  bool first = true;
  for (const auto& [name, counters] : kernels) {
    out += (first ? "\n  " : ",\n  ") + json_string(name) + ": " + kernel_json(counters);
    first = false;
  }
  return out + "}}";
}

void clear_counters() {
  driver_counters() = DriverCounters();
  const std::lock_guard lock(mutex);
  kernels.clear();
}

}  // namespace soft
