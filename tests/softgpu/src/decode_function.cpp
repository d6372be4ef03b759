// A whole function decoded: its variables laid out, then its statements one by one.
#include <algorithm>

#include "decode.hpp"

namespace soft {
namespace {
const Opcodes& opcodes() {
  static const Opcodes table = [] {
    Opcodes all;
    add_integer_opcodes(all);
    add_bit_opcodes(all);
    add_wide_opcodes(all);
    add_compare_opcodes(all);
    add_float_opcodes(all);
    add_approximate_opcodes(all);
    add_move_opcodes(all);
    add_convert_opcodes(all);
    add_memory_opcodes(all);
    add_address_opcodes(all);
    add_atomic_opcodes(all);
    add_async_opcodes(all);
    add_warp_opcodes(all);
    add_barrier_opcodes(all);
    add_control_opcodes(all);
    add_matrix_opcodes(all);
    return all;
  }();
  return table;
}

uint64_t round_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// Static shared arrays first, then the dynamic one at an address that has its alignment and no more.
void lay_out(const ParsedModule& module, Function& function) {
  Code& code = *function.code;
  uint64_t shared = 0, local = 0;
  for (Variable& variable : function.variables) {
    if (variable.space == Space::Shared && variable.used && !variable.dynamic) {
      variable.address = round_up(shared, variable.alignment);
      shared = variable.address + variable.bytes;
    } else if (variable.space == Space::Shared && variable.used) {
      code.dynamic_alignment = std::max(code.dynamic_alignment, variable.alignment);
    } else if (variable.space == Space::Local) {
      variable.address = round_up(local, variable.alignment);
      local = variable.address + variable.bytes;
    } else if (variable.space == Space::Global || variable.space == Space::Const) {
      for (const Variable& placed : module.variables) {
        if (placed.name == variable.name) variable.address = placed.address;
      }
    }
  }
  code.static_shared = uint32_t(shared);
  code.local_bytes = uint32_t(local);
  code.dynamic_offset = dynamic_shared_base(code.static_shared, code.dynamic_alignment);
  for (Variable& variable : function.variables) {
    if (variable.space == Space::Shared && variable.dynamic) variable.address = code.dynamic_offset;
  }
}

// A launch counts by number and names what it has counted at its end.
void name_opcodes(Code& code) {
  std::unordered_map<std::string_view, uint32_t> numbers;
  for (const Instruction& instruction : code.instructions) {
    const auto [known, added] = numbers.try_emplace(instruction.line->counter, uint32_t(code.opcodes.size()));
    if (added) code.opcodes.push_back(instruction.line->counter);
    code.opcode_of.push_back(known->second);
  }
}
}  // namespace

void decode(const ParsedModule& module, Function& function) {
  lay_out(module, function);
  Code& code = *function.code;
  Constants constants(code.constants);
  for (const Statement& statement : function.statements) {
    const auto found = opcodes().find(statement.opcode[0]);
    if (found == opcodes().end()) {
      not_built(statement.line->line, "opcode " + statement.opcode[0] + ": " + statement.line->text);
    }
    Instruction& instruction = code.instructions.emplace_back();
    instruction.index = uint32_t(code.instructions.size() - 1);
    Decoder decoder(module.header, function, constants, statement, instruction);
    found->second(decoder);
  }
  if (config().fuse) contract(function);
  resolve_flow(function);
  name_opcodes(code);
}
}  // namespace soft
