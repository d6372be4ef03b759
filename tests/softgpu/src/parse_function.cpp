// Functions: parameters, limits, scopes, declarations, statements and their operands.
#include <algorithm>
#include <set>

#include "parse_parser.hpp"

namespace soft {
int32_t Parser::find_register(Function& function, const std::string& text) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].registers.find(text);
    if (found != scopes_[i].registers.end()) return found->second;
  }
  const Special special = special_named(text);
  if (special == Special::Count) return -1;
  VirtualRegister added{type_of(special), text};
  added.special = int(special);
  function.code->registers.push_back(added);
  return scopes_.front().registers[text] = int32_t(function.code->registers.size() - 1);
}

int Parser::find_variable(Function& function, const std::string& text) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].variables.find(text);
    if (found != scopes_[i].variables.end()) return found->second;
  }
  const auto found = module_variables_.find(text);
  if (found == module_variables_.end()) return -1;
  function.variables.push_back(module_.variables[found->second]);
  return scopes_.front().variables[text] = int(function.variables.size() - 1);
}

Operand Parser::scalar(Function& function) {
  Operand result;
  const Token token = lex_.peek();
  if (token.is('-') || token.is('+') || token.is('~') || token.is('!')) {
    lex_.next();
    result = scalar(function);
    if (token.is('!') && result.kind == OperandKind::Register) {
      result.negated = true;
    } else if (token.is('-') && result.kind == OperandKind::Integer) {
      result.integer = int64_t(0 - uint64_t(result.integer));
      result.is_unsigned = false;
    } else if (token.is('~') && result.kind == OperandKind::Integer) {
      result.integer = ~result.integer;
    } else if (token.is('-') && result.kind == OperandKind::Float) {
      result.float_bits ^= result.single ? 1ull << 31 : 1ull << 63;
    } else if (!token.is('+') || result.kind == OperandKind::Register) {
      not_built(token.line, "this constant expression");
    }
    return result;
  }
  if (token.is('(')) {
    lex_.next();
    result = scalar(function);
    if (!lex_.peek().is(')')) not_built(token.line, "this constant expression");
    lex_.next();
    return result;
  }
  if (token.kind == TokenKind::Number) {
    literal(lex_.next(), &result);
    return result;
  }
  result.name = name();
  if (result.name == "_") return result;
  if (result.name == "WARP_SZ") {
    result.kind = OperandKind::Integer;
    result.integer = kLanes;
    return result;
  }
  if (result.name[0] == '%' && lex_.peek().kind == TokenKind::Directive && lex_.peek().text.size() == 2) {
    result.name += std::string(lex_.next().text);
  }
  result.reg = find_register(function, result.name);
  if (result.reg >= 0) {
    result.kind = OperandKind::Register;
    return result;
  }
  if (result.name[0] == '%') refuse(token.line, "no register " + result.name);
  result.kind = OperandKind::Symbol;
  result.variable = find_variable(function, result.name);
  if (result.variable >= 0) function.variables[size_t(result.variable)].used = true;
  return result;
}

Operand Parser::address(Function& function) {
  Operand base = scalar(function);
  Operand result = base;
  result.kind = OperandKind::Address;
  if (base.kind == OperandKind::Integer) {
    result.integer = base.integer;
  } else if (base.kind == OperandKind::Symbol) {
    if (base.variable < 0) refuse(lex_.peek().line, "no variable " + base.name);
  } else if (base.kind != OperandKind::Register || base.negated) {
    refuse(lex_.peek().line, "not an address");
  }
  while (lex_.peek().is('+') || lex_.peek().is('-')) {
    const bool minus = lex_.next().is('-');
    const int64_t offset = integer();
    result.integer += minus ? -offset : offset;
  }
  lex_.expect(']');
  return result;
}

Operand Parser::operand(Function& function) {
  if (lex_.accept('[')) return address(function);
  if (lex_.accept('{')) {
    Operand result;
    result.kind = OperandKind::Vector;
    do {
      result.parts.push_back(scalar(function));
    } while (lex_.accept(','));
    lex_.expect('}');
    return result;
  }
  Operand result = scalar(function);
  if (lex_.accept('|')) {
    const Operand second = scalar(function);
    result.first_sink = result.kind == OperandKind::Sink;
    result.second_sink = second.kind == OperandKind::Sink;
    if ((!result.first_sink && result.kind != OperandKind::Register) ||
        (!result.second_sink && second.kind != OperandKind::Register) || second.negated) {
      refuse(lex_.peek().line, "'|' joins two destination registers");
    }
    result.kind = OperandKind::Register;
    result.second = second.reg;
  } else if (result.kind == OperandKind::Symbol && result.variable >= 0) {
    while (lex_.peek().is('+') || lex_.peek().is('-')) {
      const bool minus = lex_.next().is('-');
      const int64_t offset = integer();
      result.integer += minus ? -offset : offset;
    }
  }
  return result;
}

namespace {
// What counters call an opcode: its name with the state space and the words that make it another operation.
std::string counter_name(const std::vector<std::string>& opcode) {
  static const std::set<std::string> kept = {"global",   "shared", "local", "const", "param",        "sync",
                                             "async",    "wide",   "lo",    "hi",    "commit_group", "wait_group",
                                             "wait_all", "arrive", "red",   "warp",  "approx",       "to"};
  std::string result = opcode[0];
  for (size_t i = 1; i < opcode.size(); ++i) {
    const std::string word = opcode[i].substr(0, opcode[i].find("::"));
    if (word == "aligned" || (opcode[0] == "cp" && (word == "ca" || word == "cg"))) break;
    if (kept.count(word)) result += "." + word;
  }
  return result;
}
}  // namespace

void Parser::statement(Function& function) {
  const size_t begin = lex_.peek().begin;
  Statement result;
  const int line = lex_.peek().line;
  if (lex_.accept('@')) {
    result.guard_negated = lex_.accept('!');
    const std::string text = name();
    result.guard = find_register(function, text);
    if (result.guard < 0 || function.code->registers[size_t(result.guard)].type != Type::Pred) {
      refuse(line, "the guard " + text + " is no predicate");
    }
  }
  if (lex_.peek().kind != TokenKind::Name) unexpected();
  const std::string opcode(lex_.opcode().text);
  for (size_t at = 0; at <= opcode.size();) {
    const size_t dot = std::min(opcode.find('.', at), opcode.size());
    result.opcode.push_back(opcode.substr(at, dot - at));
    at = dot + 1;
  }
  while (!lex_.peek().is(';')) {
    if (lex_.peek().is('(')) not_built(line, "a call: kernels are fully inlined here");
    result.operands.push_back(operand(function));
    if (!lex_.peek().is(';')) lex_.expect(',');
  }
  SourceLine& source = function.code->lines.emplace_back();
  source.line = line;
  bool blank = false;
  for (const char c : lex_.slice(begin, lex_.peek().begin)) {
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!space && blank && !source.text.empty()) source.text += ' ';
    if (!space) source.text += c;
    blank = space;
  }
  source.text += ';';
  source.counter = counter_name(result.opcode);
  function.loc_file.push_back(loc_file_);
  function.loc_line.push_back(loc_line_);
  result.line = &source;
  result.scope = scope_;
  function.statements.push_back(std::move(result));
  lex_.expect(';');
}

void Parser::declare_registers(Function& function) {
  if (lex_.peek().is(".v2") || lex_.peek().is(".v4")) not_built(lex_.peek().line, "vector registers");
  const Token at = lex_.peek();
  const Type declared = type();
  if (declared == Type::B8 || declared == Type::U8 || declared == Type::S8 || declared == Type::B128) {
    not_built(at.line, "registers of type " + std::string(at.text));
  }
  const auto add = [&](const std::string& text) {
    if (!scopes_.back().registers.emplace(text, int32_t(function.code->registers.size())).second) {
      refuse(at.line, "register " + text + " is declared twice");
    }
    function.code->registers.push_back({declared, text});
  };
  do {
    const std::string text = name();
    if (!lex_.accept('<')) {
      add(text);
      continue;
    }
    const int64_t count = integer();
    lex_.expect('>');
    if (count < 0 || count > 1000000) refuse(at.line, "so many registers");
    for (int64_t i = 0; i < count; ++i) add(text + std::to_string(i));
  } while (lex_.accept(','));
  lex_.expect(';');
}

void Parser::location() {  // .loc file line column [, function_name label [+ n], inlined_at file line column]
  loc_file_ = int(integer());
  loc_line_ = int(integer());
  integer();
  while (lex_.accept(',')) {
    const std::string what = name();
    if (what == "function_name") {
      name();
      if (lex_.accept('+')) integer();
    } else if (what == "inlined_at") {
      for (int i = 0; i < 3; ++i) integer();
    } else {
      refuse_here(".loc with " + what);
    }
  }
}

void Parser::parameter(Function& function) {
  if (!lex_.accept(".param")) refuse_here("expected .param");
  Variable added = variable(Space::Param);
  Code& code = *function.code;
  added.address = (code.parameter_bytes + added.alignment - 1) / added.alignment * added.alignment;
  code.parameters.push_back({uint32_t(added.address), uint32_t(added.bytes), added.alignment});
  code.parameter_bytes = uint32_t(added.address + added.bytes);
  scopes_.back().variables[added.name] = int32_t(function.variables.size());
  function.variables.push_back(added);
}

void Parser::limits(Function& function) {
  Code& code = *function.code;
  const auto numbers = [&](uint32_t* out) {
    out[0] = out[1] = out[2] = 1;
    int n = 0;
    do {
      if (n == 3) refuse_here("a fourth dimension");
      out[n++] = uint32_t(integer());
    } while (lex_.accept(','));
  };
  while (!lex_.peek().is('{') && !lex_.peek().is(';')) {
    uint32_t n[3];
    if (lex_.accept(".maxntid")) {
      numbers(n);
      code.max_threads = n[0] * n[1] * n[2];
    } else if (lex_.accept(".reqntid")) {
      numbers(code.required);
      code.max_threads = code.required[0] * code.required[1] * code.required[2];
    } else if (lex_.accept(".minnctapersm")) {
      code.min_blocks = uint32_t(integer());
    } else if (lex_.accept(".maxnreg")) {
      integer();
    } else if (lex_.accept(".pragma")) {
      while (!lex_.accept(';')) lex_.next();
    } else if (!lex_.accept(".noreturn")) {
      unexpected();
    }
  }
}

void Parser::body(Function& function) {
  lex_.expect('{');
  scopes_.emplace_back();
  const int outer = scope_;
  function.scope_parents.push_back(outer);
  scope_ = int(function.scope_parents.size() - 1);
  while (!lex_.accept('}')) {
    const Token token = lex_.peek();
    if (token.kind == TokenKind::End) refuse_here("the text ends inside " + function.code->name);
    if (token.is('{')) {
      body(function);
    } else if (lex_.accept(".reg")) {
      declare_registers(function);
    } else if (token.is(".shared") || token.is(".local")) {
      lex_.next();
      Variable added = variable(token.is(".shared") ? Space::Shared : Space::Local);
      lex_.expect(';');
      if (!added.initial.empty()) refuse(token.line, added.name + " cannot have an initial value");
      added.used = true;
      scopes_.back().variables[added.name] = int32_t(function.variables.size());
      function.variables.push_back(added);
    } else if (lex_.accept(".loc")) {
      location();
    } else if (lex_.accept(".pragma")) {
      while (!lex_.accept(';')) lex_.next();
    } else if (lex_.at_label()) {
      const std::string label = name();
      lex_.expect(':');
      if (lex_.accept(".branchtargets")) {
        auto& targets = function.branch_targets[label];
        do {
          targets.push_back(name());
        } while (lex_.accept(','));
        lex_.expect(';');
      } else {
        for (const Label& each : function.labels) {
          if (each.name == label && each.scope == scope_) refuse(token.line, "label " + label + " stands twice");
        }
        function.labels.push_back({label, function.statements.size(), token.line, scope_});
      }
    } else if (!lex_.accept(';')) {
      statement(function);
    }
  }
  scopes_.pop_back();
  scope_ = outer;
}

void Parser::entry(bool is_extern) {
  Function& function = module_.functions.emplace_back();
  function.code = std::make_unique<Code>();
  function.code->name = name();
  scopes_.assign(1, {});
  loc_file_ = loc_line_ = 0;
  if (lex_.accept('(') && !lex_.accept(')')) {
    do {
      parameter(function);
    } while (lex_.accept(','));
    lex_.expect(')');
  }
  limits(function);
  if (is_extern || lex_.accept(';')) {
    module_.functions.pop_back();
    return;
  }
  body(function);
}
}  // namespace soft
