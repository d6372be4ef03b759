// Tokens of PTX text: names, numbers and punctuation, with the line each begins on.
#pragma once
#include <string>
#include <string_view>

namespace soft {

enum class TokenKind : uint8_t { End, Name, Directive, Number, Text, Punctuation };

struct Token {
  TokenKind kind = TokenKind::End;
  std::string_view text;  // a directive's begins with its dot, a string's is without its quotes
  int line = 0;
  size_t begin = 0, end = 0;
  bool is(char c) const { return kind == TokenKind::Punctuation && text.size() == 1 && text[0] == c; }
  bool is(std::string_view word) const { return kind != TokenKind::Text && text == word; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }
  const Token& peek() const { return token_; }
  Token next();
  Token opcode();  // from the name at hand on, with its modifiers: "ld.global.nc.L2::128B.v4.u32"
  bool accept(char c);
  bool accept(std::string_view word);
  void expect(char c);
  bool at_label() const;  // the name at hand is followed by a colon
  std::string_view slice(size_t begin, size_t end) const { return text_.substr(begin, end - begin); }
  size_t last_end() const { return last_end_; }

 private:
  void skip_blank();
  void advance();
  std::string_view text_;
  size_t position_ = 0, last_end_ = 0;
  int line_ = 1;
  Token token_;
};
}  // namespace soft
