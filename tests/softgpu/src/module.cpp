// Modules from PTX: variables placed, functions decoded once. What is large and decoded is kept for the process, as
// tests load the same modules after every reset.
#include <algorithm>
#include <cstring>
#include <list>

#include "decode.hpp"
#include "machine.hpp"

namespace soft {
namespace {

constexpr size_t kWorthKeeping = 32 << 10;  // bytes of text
constexpr size_t kKept = 16;                // modules, those last loaded

struct Decoded {
  PtxHeader header{};
  std::vector<Variable> variables;  // not yet placed
  std::vector<std::shared_ptr<Kernel>> kernels;
};

// By all that decoding depends on: the seed draws which pairs of mul and add are one fma.
struct Kept {
  std::string ptx;
  bool fuse;
  uint64_t seed;
  Decoded decoded;
};
std::list<Kept> kept;  // guarded by the driver's lock

const Decoded* find_kept(const std::string& ptx) {
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Kept& one) {
    return one.fuse == config().fuse && one.seed == config().seed && one.ptx == ptx;
  });
  if (found == kept.end()) return nullptr;
  kept.splice(kept.begin(), kept, found);
  return &found->decoded;
}

void keep(const std::string& ptx, const Decoded& decoded) {
  kept.push_front({ptx, config().fuse, config().seed, decoded});
  if (kept.size() > kKept) kept.pop_back();
}

// Code with a variable's address in it is good for one load; most modules have only constants that nothing refers to.
bool holds_addresses(const ParsedModule& parsed) {
  return std::any_of(parsed.functions.begin(), parsed.functions.end(), [](const Function& function) {
    return std::any_of(function.variables.begin(), function.variables.end(), [](const Variable& variable) {
      return variable.space == Space::Global || variable.space == Space::Const;
    });
  });
}

void place(std::vector<Variable>& variables, int device, std::vector<Global>& globals) {
  for (Variable& variable : variables) {
    if (variable.space == Space::Shared) continue;
    const uint64_t bytes = std::max<uint64_t>(variable.bytes, 1);
    variable.address = allocate(device, bytes, "variable " + variable.name);
    if (!variable.address) refuse(0, "no memory for " + variable.name);
    globals.push_back({variable.name, variable.address, variable.bytes});
  }
  for (Variable& variable : variables) {
    if (variable.space == Space::Shared) continue;
    variable.initial.resize(variable.bytes);  // what is not given is zero
    for (const auto& [offset, target] : variable.pointers) {
      const auto found =
          std::find_if(variables.begin(), variables.end(), [&](const Variable& v) { return v.name == target; });
      if (found == variables.end()) refuse(0, "no variable " + target);
      uint64_t address;
      std::memcpy(&address, &variable.initial[offset], sizeof address);
      address += found->address;
      std::memcpy(&variable.initial[offset], &address, sizeof address);
    }
    write_device(variable.address, variable.initial.data(), variable.bytes);
  }
}
}  // namespace

std::unique_ptr<Module> load_module(const std::string& ptx, int device) {
  auto program = std::make_unique<Program>();
  Decoded decoded;
  if (const Decoded* found = find_kept(ptx)) {
    decoded = *found;
    place(decoded.variables, device, program->globals);
  } else {
    ParsedModule parsed = parse(ptx);
    decoded = {parsed.header, parsed.variables, {}};
    place(parsed.variables, device, program->globals);
    for (Function& function : parsed.functions) {
      decode(parsed, function);
      decoded.kernels.push_back(std::move(function.code));
    }
    if (ptx.size() >= kWorthKeeping && !holds_addresses(parsed)) keep(ptx, decoded);
  }
  program->version_major = decoded.header.version_major;
  program->version_minor = decoded.header.version_minor;
  program->target = decoded.header.target;
  program->kernels = std::move(decoded.kernels);
  return program;
}
}  // namespace soft
