// The parser outside of functions: the header, numbers, variables, debug information.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "parse_parser.hpp"

namespace soft {
void refuse(int line, const std::string& what) { throw PtxError{line, what}; }
void not_built(int line, const std::string& what) { unsupported("ptx line " + std::to_string(line) + ": " + what); }

namespace {
// PTX manual, "PTX ISA Version History": the last minor version of each major one, and what a target came with.
constexpr int kLastMinor[] = {-1, 5, 3, 2, 3, 1, 5, 8, 8};
struct TargetVersion {
  int target, version;
};
constexpr TargetVersion kTargets[] = {
    {50, 40}, {52, 41},  {53, 42},  {60, 50},  {61, 50},  {62, 50},  {70, 60},
    {72, 61}, {75, 63},  {80, 70},  {86, 71},  {87, 74},  {88, 90},  {89, 78},
    {90, 78}, {100, 86}, {101, 86}, {103, 88}, {110, 90}, {120, 87}, {121, 88},
};
}  // namespace

int64_t Parser::literal(const Token& token, Operand* as) {
  std::string text(token.text);
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
    const bool single = (text[1] | 32) == 'f';
    uint64_t bits = 0;
    const auto end = text.data() + text.size();
    const auto [p, error] = std::from_chars(text.data() + 2, end, bits, 16);
    if (!as || error != std::errc() || p != end || text.size() != (single ? 10u : 18u)) {
      refuse(token.line, "not a number: " + text);
    }
    as->kind = OperandKind::Float;
    as->float_bits = bits;
    as->single = single;
    return 0;
  }
  const bool hexadecimal = text.size() > 1 && text[0] == '0' && (text[1] | 32) == 'x';
  if (!hexadecimal && text.find_first_of(".eE") != std::string::npos) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!as || *end) refuse(token.line, "not a number: " + text);
    as->kind = OperandKind::Float;
    as->float_bits = std::bit_cast<uint64_t>(value);
    return 0;
  }
  const bool is_unsigned = (text.back() | 32) == 'u';
  if (is_unsigned) text.pop_back();
  int base = 10;
  size_t skip = 0;
  if (hexadecimal) {
    base = 16;
    skip = 2;
  } else if (text.size() > 1 && text[0] == '0' && (text[1] | 32) == 'b') {
    base = 2;
    skip = 2;
  } else if (text.size() > 1 && text[0] == '0') {
    base = 8;
    skip = 1;
  }
  uint64_t value = 0;
  const auto end = text.data() + text.size();
  const auto [p, error] = std::from_chars(text.data() + skip, end, value, base);
  if (error != std::errc() || p != end) refuse(token.line, "not a number: " + std::string(token.text));
  if (as) {
    as->kind = OperandKind::Integer;
    as->integer = int64_t(value);
    as->is_unsigned = is_unsigned || value > INT64_MAX;
  }
  return int64_t(value);
}

int64_t Parser::integer() {
  if (lex_.accept('-')) return -integer();
  if (lex_.peek().kind != TokenKind::Number)
    refuse_here("expected a number before '" + std::string(lex_.peek().text) + "'");
  return literal(lex_.next(), nullptr);
}

std::string Parser::name() {
  if (lex_.peek().kind != TokenKind::Name)
    refuse_here("expected a name before '" + std::string(lex_.peek().text) + "'");
  return std::string(lex_.next().text);
}

Type Parser::type() {
  const Token token = lex_.next();
  if (token.kind != TokenKind::Directive)
    refuse(token.line, "expected a type before '" + std::string(token.text) + "'");
  const Type result = type_named(token.text.substr(1));
  if (result == Type::None) not_built(token.line, "type " + std::string(token.text));
  return result;
}

void Parser::skip_to(char c) {
  while (!lex_.peek().is(c)) {
    if (lex_.peek().kind == TokenKind::End) refuse_here(std::string("the text ends before a '") + c + "'");
    lex_.next();
  }
  lex_.next();
}

void Parser::section() {  // debug information; its bytes mean nothing here
  lex_.next();
  lex_.next();
  lex_.expect('{');
  skip_to('}');
}

void Parser::file() {
  lex_.next();
  const int index = int(integer());
  if (lex_.peek().kind != TokenKind::Text) refuse_here("expected a file name");
  module_.files[index] = std::string(lex_.next().text);
  while (lex_.accept(',')) integer();
}

void Parser::initializer(Variable& variable, int element) {
  const auto put = [&](uint64_t value) {
    for (int i = 0; i < element; ++i) variable.initial.push_back(uint8_t(value >> (8 * i)));
  };
  if (lex_.accept('{')) {
    while (!lex_.accept('}')) {
      initializer(variable, element);
      if (!lex_.peek().is('}')) lex_.expect(',');
    }
  } else if (lex_.peek().kind == TokenKind::Name) {
    std::string target = name();
    if (target == "generic") {
      lex_.expect('(');
      target = name();
      lex_.expect(')');
    }
    if (element != 8) not_built(lex_.peek().line, "an address in an initializer narrower than 8 bytes");
    variable.pointers.emplace_back(variable.initial.size(), target);
    put(lex_.accept('+') ? uint64_t(integer()) : 0);
  } else {
    const bool minus = lex_.accept('-');
    Operand value;
    literal(lex_.next(), &value);
    if (value.kind == OperandKind::Integer) {
      put(uint64_t(minus ? -value.integer : value.integer));
    } else if (element == 4 && !value.single) {
      const double number = std::bit_cast<double>(value.float_bits);
      put(std::bit_cast<uint32_t>(float(minus ? -number : number)));
    } else {
      put(value.float_bits ^ (minus ? 1ull << (element * 8 - 1) : 0));
    }
  }
}

Variable Parser::variable(Space space) {
  Variable result;
  result.space = space;
  if (lex_.accept(".align")) result.alignment = uint32_t(integer());
  int vector = 1;
  if (lex_.accept(".v2")) vector = 2;
  if (lex_.accept(".v4")) vector = 4;
  const Type element_type = type();
  if (lex_.accept(".ptr")) {
    while (lex_.peek().kind == TokenKind::Directive) {  // what a pointer parameter points to
      if (lex_.next().text == ".align") integer();
    }
  }
  const int element = width_of(element_type);
  if (element == 0) refuse_here("a variable cannot be a predicate");
  result.alignment = std::max(result.alignment, uint32_t(element * vector));
  result.name = name();
  result.bytes = uint64_t(element) * vector;
  while (lex_.accept('[')) {
    if (lex_.accept(']')) {
      result.dynamic = true;
      result.bytes = 0;
      continue;
    }
    result.bytes *= uint64_t(integer());
    lex_.expect(']');
  }
  if (lex_.accept('=')) {
    initializer(result, element);
    if (result.dynamic) {
      result.bytes = result.initial.size();
      result.dynamic = false;
    }
    if (result.initial.size() > result.bytes) refuse_here("more initial values than " + result.name + " holds");
  }
  return result;
}

PtxHeader Parser::header() {
  if (!lex_.accept(".version")) refuse_here("the text does not begin with .version");
  const Token token = lex_.next();
  const size_t dot = token.text.find('.');
  if (token.kind != TokenKind::Number || dot == std::string_view::npos) refuse(token.line, "not a version");
  module_.header.version_major = std::atoi(std::string(token.text.substr(0, dot)).c_str());
  module_.header.version_minor = std::atoi(std::string(token.text.substr(dot + 1)).c_str());
  if (!lex_.accept(".target")) refuse_here("no .target after .version");
  do {
    const std::string target = name();
    if (target.rfind("sm_", 0) == 0) {
      module_.header.target = std::atoi(target.c_str() + 3);
    } else if (target != "debug") {
      not_built(token.line, ".target " + target);
    }
  } while (lex_.accept(','));
  if (!module_.header.target) refuse_here("no sm_ in .target");
  const auto [major, minor, number] = module_.header;
  if (major < 1 || (major < int(std::size(kLastMinor)) && minor > kLastMinor[major])) {
    refuse(token.line, "no .version " + std::string(token.text));
  }
  const auto known =
      std::find_if(std::begin(kTargets), std::end(kTargets), [&](auto& each) { return each.target == number; });
  if (known == std::end(kTargets)) refuse(token.line, "no .target sm_" + std::to_string(number));
  if (major * 10 + minor < known->version) {
    refuse(token.line, "sm_" + std::to_string(number) + " needs a later .version");
  }
  return module_.header;
}

ParsedModule Parser::module() {
  header();
  while (lex_.peek().kind != TokenKind::End) {
    const Token token = lex_.peek();
    bool is_extern = false;
    while (lex_.peek().is(".visible") || lex_.peek().is(".extern") || lex_.peek().is(".weak") ||
           lex_.peek().is(".common")) {
      is_extern |= lex_.next().is(".extern");
    }
    if (lex_.accept(".address_size")) {
      if (integer() != 64) not_built(token.line, "an address size other than 64");
    } else if (lex_.accept(".entry")) {
      entry(is_extern);
    } else if (lex_.peek().is(".func")) {
      not_built(lex_.peek().line, ".func: kernels are fully inlined here");
    } else if (lex_.peek().is(".global") || lex_.peek().is(".const") || lex_.peek().is(".shared")) {
      const std::string_view space = lex_.next().text;
      Variable added = variable(space == ".global"  ? Space::Global
                                : space == ".const" ? Space::Const
                                                    : Space::Shared);
      lex_.expect(';');
      if (is_extern && added.space != Space::Shared)
        not_built(token.line, "an external variable: modules are not linked here");
      if (!module_variables_.emplace(added.name, module_.variables.size()).second) {
        refuse(token.line, added.name + " is declared twice");
      }
      module_.variables.push_back(added);
    } else if (lex_.peek().is(".section")) {
      section();
    } else if (lex_.peek().is(".file")) {
      file();
    } else if (lex_.accept(".pragma")) {
      skip_to(';');
    } else if (!lex_.accept(';')) {
      unexpected();
    }
  }
  for (Function& function : module_.functions) {
    for (size_t i = 0; i < function.code->lines.size(); ++i) {
      const auto named = module_.files.find(function.loc_file[i]);
      if (named == module_.files.end() || function.loc_line[i] == 0) continue;
      function.code->lines[i].source = named->second + ":" + std::to_string(function.loc_line[i]);
    }
  }
  return std::move(module_);
}
ParsedModule parse(const std::string& ptx) { return Parser(ptx).module(); }
PtxHeader read_header(const std::string& ptx) { return Parser(ptx).header(); }
}  // namespace soft
