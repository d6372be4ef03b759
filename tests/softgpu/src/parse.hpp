// PTX text as statements and symbols: directives, scopes and operands, but not what an opcode means (decode.hpp).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir.hpp"

namespace soft {

enum class OperandKind : uint8_t { Register, Integer, Float, Symbol, Address, Vector, Sink };

struct Operand {
  OperandKind kind = OperandKind::Sink;
  bool negated = false;        // !%p
  int32_t reg = -1;            // Register; Address with a register base
  int32_t second = -1;         // %r1|%p2
  bool second_sink = false;    // %r1|_
  bool first_sink = false;     // _|%p2
  int64_t integer = 0;         // Integer; Address: the offset
  bool is_unsigned = false;    // Integer written with U
  uint64_t float_bits = 0;     // Float: 0f (32 bits) or 0d or decimal (64)
  bool single = false;         // Float written as 0f
  int variable = -1;           // Symbol, Address: index into the function's variables
  std::string name;            // as written: labels, symbols
  std::vector<Operand> parts;  // Vector
};

struct Statement {
  SourceLine* line = nullptr;
  int32_t guard = -1;
  bool guard_negated = false;
  int scope = 0;
  std::vector<std::string> opcode;  // split at the dots
  std::vector<Operand> operands;
};

struct Variable {
  std::string name;
  Space space = Space::Global;
  uint32_t alignment = 1;
  uint64_t bytes = 0;
  bool dynamic = false;  // extern shared array without a size
  bool used = false;
  std::vector<uint8_t> initial;
  std::vector<std::pair<uint64_t, std::string>> pointers;  // initialised with another variable's address
  uint64_t address = 0;                                    // in its space, once laid out
};

struct Label {
  std::string name;
  size_t statement;  // the one that follows it
  int line, scope;   // braces are scopes of labels too
};

struct Function {
  std::unique_ptr<Code> code;  // name, parameters, limits, lines, registers
  std::vector<Statement> statements;
  std::vector<Label> labels;
  std::map<std::string, std::vector<std::string>> branch_targets;
  std::vector<int> scope_parents;       // by scope; -1: the function's own
  std::vector<Variable> variables;      // of the function and its parameters; a module's are copied in on first use
  std::vector<int> loc_file, loc_line;  // by line in code->lines
};

struct ParsedModule {
  PtxHeader header{};
  std::vector<Variable> variables;
  std::vector<Function> functions;
  std::map<int, std::string> files;
};

ParsedModule parse(const std::string& ptx);
[[noreturn]] void refuse(int line, const std::string& what);     // throws PtxError
[[noreturn]] void not_built(int line, const std::string& what);  // throws Unsupported
Special special_named(std::string_view name);                    // Count: none
Type type_of(Special special);
}  // namespace soft
