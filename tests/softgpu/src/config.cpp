// Parses knobs, each by its own type, and refuses what it does not know: a misspelt knob must not pass as a default.
#include "config.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "api_symbols.hpp"

extern char** environ;

namespace soft {
namespace {

Config current;
bool configured = false;

[[noreturn]] void refuse(const std::string& line, const char* why) {
  std::fprintf(stderr, "softgpu: %s: %s\n", line.c_str(), why);
  std::abort();
}

bool parse(const std::string& text, bool& value) {
  if (text == "1" || text == "true" || text == "True") return value = true, true;
  if (text == "0" || text == "false" || text == "False") return value = false, true;
  return false;
}

template <class T>
bool parse_integer(const std::string& text, T& value) {
  if (text.empty()) return false;
  char* end = nullptr;
  errno = 0;
  if constexpr (std::is_signed_v<T>) {
    const long long parsed = std::strtoll(text.c_str(), &end, 0);
    value = T(parsed);
    return !*end && errno == 0 && value == parsed;
  } else {
    if (text[0] == '-') return false;
    const unsigned long long parsed = std::strtoull(text.c_str(), &end, 0);
    value = T(parsed);
    return !*end && errno == 0 && value == parsed;
  }
}

bool parse(const std::string& text, int& value) { return parse_integer(text, value); }
bool parse(const std::string& text, int64_t& value) { return parse_integer(text, value); }
bool parse(const std::string& text, uint64_t& value) { return parse_integer(text, value); }

bool parse(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && !*end && value >= 0;
}

bool parse(const std::string& text, std::string& value) {
  value = text;
  return true;
}

struct Knob {
  const char* name;
  bool (*set)(const std::string& text);
};

#define KNOB(name) {#name, [](const std::string& text) { return parse(text, current.name); }}
constexpr Knob kKnobs[] = {
    KNOB(capability), KNOB(devices), KNOB(sm_count), KNOB(memory_bytes), KNOB(free_memory_off),
    KNOB(free_memory_drift), KNOB(mig), KNOB(peer_access), KNOB(peer_writes_dropped), KNOB(driver_version),
    KNOB(ptx_directory), KNOB(seed), KNOB(jitter), KNOB(fuse), KNOB(adversarial), KNOB(resident_blocks),
    KNOB(block_order), KNOB(warp_order), KNOB(threads), KNOB(instruction_limit), KNOB(allow_float_atomics),
    KNOB(checks), KNOB(strict_copies), KNOB(init_error), KNOB(init_error_seconds), KNOB(context_error),
    KNOB(context_error_seconds), KNOB(host_register_error), KNOB(pin_seconds_per_gb), KNOB(module_load_seconds),
    KNOB(ptx_jit_error), KNOB(graph_instantiate_error), KNOB(fail_call), KNOB(fail_at), KNOB(fail_error),
    KNOB(launch_error), KNOB(fault_at_launch), KNOB(hang_at_launch), KNOB(faults_once), KNOB(report),
    KNOB(report_at_waits),
};
#undef KNOB

void set(std::string_view name, const std::string& text, const std::string& line) {
  for (const Knob& knob : kKnobs) {
    if (name != knob.name) continue;
    if (!knob.set(text)) refuse(line, "not a value of this knob");
    return;
  }
  refuse(line, "no such knob");
}

void read_environment() {
  constexpr std::string_view kPrefix = "SOFTGPU_";
  for (char** entry = environ; *entry; ++entry) {
    const std::string line = *entry;
    if (!line.starts_with(kPrefix)) continue;
    const size_t equals = line.find('=');
    std::string name = line.substr(kPrefix.size(), equals - kPrefix.size());
    for (char& letter : name) letter = char(std::tolower(static_cast<unsigned char>(letter)));
    set(name, line.substr(equals + 1), line);
  }
}

void require(bool holds, const char* what) {
  if (!holds) refuse(what, "out of range");
}

bool is_order(const std::string& text) { return text == "forward" || text == "reverse" || text == "shuffle"; }

void check_ranges() {
  require(current.capability >= 50 && current.capability < 200, "capability");
  require(current.devices >= 0 && current.devices <= 16, "devices");
  require(current.sm_count >= 1, "sm_count");
  require(current.memory_bytes <= 512ull << 30, "memory_bytes (at most 512 GiB of a device's terabyte of addresses)");
  require(is_order(current.block_order), "block_order (forward, reverse or shuffle)");
  require(is_order(current.warp_order), "warp_order (forward, reverse or shuffle)");
  require(current.resident_blocks >= 0 && current.threads >= 0, "resident_blocks or threads");
  require(current.fail_call.empty() || is_api_call(current.fail_call), "fail_call (a function's name, without _v2)");
}

}  // namespace

const Config& config() {
  if (!configured) configure("");
  return current;
}

void configure(const std::string& lines) {
  configured = true;
  current = Config();
  read_environment();
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string line = lines.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) refuse(line, "a knob is written name=value");
    set(line.substr(0, equals), line.substr(equals + 1), line);
  }
  check_ranges();
}

}  // namespace soft
