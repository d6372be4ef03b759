// The parser's state and its parts: what is outside of functions (parse.cpp) and inside (parse_function.cpp).
#pragma once
#include "parse.hpp"
#include "parse_lexer.hpp"

namespace soft {
class Parser {
 public:
  explicit Parser(const std::string& text) : lex_(text) {}
  ParsedModule module();
  PtxHeader header();

 private:
  [[noreturn]] void refuse_here(const std::string& what) { refuse(lex_.peek().line, what); }
  [[noreturn]] void unexpected() {
    if (lex_.peek().kind == TokenKind::Directive) not_built(lex_.peek().line, std::string(lex_.peek().text));
    refuse_here("unexpected '" + std::string(lex_.peek().text) + "'");
  }
  int64_t integer();
  int64_t literal(const Token& token, Operand* as);
  std::string name();
  Type type();
  void section();
  void file();
  Variable variable(Space space);
  void initializer(Variable& variable, int element);
  void skip_to(char c);
  // functions
  void entry(bool is_extern);
  void parameter(Function& function);
  void limits(Function& function);
  void body(Function& function);
  void declare_registers(Function& function);
  void location();
  void statement(Function& function);
  Operand operand(Function& function);
  Operand address(Function& function);
  Operand scalar(Function& function);
  int32_t find_register(Function& function, const std::string& name);
  int find_variable(Function& function, const std::string& name);

  struct Scope {
    std::map<std::string, int32_t, std::less<>> registers, variables;
  };
  Lexer lex_;
  ParsedModule module_;
  std::vector<Scope> scopes_;
  int scope_ = -1;  // index into Function::scope_parents
  std::map<std::string, size_t> module_variables_;
  int loc_file_ = 0, loc_line_ = 0;
};
}  // namespace soft
