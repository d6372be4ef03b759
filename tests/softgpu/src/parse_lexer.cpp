// The lexer of PTX text.
#include "parse_lexer.hpp"

#include <cctype>

#include "parse.hpp"

namespace soft {
namespace {
bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }
}  // namespace

void Lexer::skip_blank() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == '\0') {  // the driver's strings may carry their terminator
      position_ = text_.size();
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      ++position_;
    } else if (text_.compare(position_, 2, "//") == 0) {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (text_.compare(position_, 2, "/*") == 0) {
      const size_t end = text_.find("*/", position_ + 2);
      if (end == std::string_view::npos) refuse(line_, "a comment without its end");
      for (; position_ < end + 2; ++position_) line_ += text_[position_] == '\n';
    } else {
      break;
    }
  }
}

void Lexer::advance() {
  skip_blank();
  token_ = Token{TokenKind::End, {}, line_, position_, position_};
  if (position_ >= text_.size()) return;
  const size_t begin = position_;
  const char c = text_[position_];
  const auto more = [&](size_t ahead) { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; };
  if (c == '"') {
    const size_t end = text_.find('"', begin + 1);
    if (end == std::string_view::npos) refuse(line_, "a string without its end");
    position_ = end + 1;
    token_.kind = TokenKind::Text;
    token_.text = text_.substr(begin + 1, end - begin - 1);
  } else if (starts_name(c)) {
    ++position_;
    while (in_name(more(0))) ++position_;
    token_.kind = TokenKind::Name;
  } else if (c == '.' && (starts_name(more(1)))) {
    ++position_;
    while (in_name(more(0)) || (more(0) == ':' && more(1) == ':')) position_ += more(0) == ':' ? 2 : 1;
    token_.kind = TokenKind::Directive;
  } else if (std::isdigit(static_cast<unsigned char>(c))) {
    const bool prefixed = c == '0' && std::isalpha(static_cast<unsigned char>(more(1)));
    while (in_name(more(0)) || (!prefixed && more(0) == '.') ||
           (!prefixed && (more(0) == '+' || more(0) == '-') && (text_[position_ - 1] | 32) == 'e')) {
      ++position_;
    }
    token_.kind = TokenKind::Number;
  } else {
    ++position_;
    token_.kind = TokenKind::Punctuation;
  }
  if (token_.kind != TokenKind::Text) token_.text = text_.substr(begin, position_ - begin);
  token_.begin = begin;
  token_.end = position_;
}

Token Lexer::next() {
  const Token result = token_;
  last_end_ = token_.end;
  advance();
  return result;
}

Token Lexer::opcode() {
  Token result = token_;
  position_ = token_.end;
  while (position_ < text_.size() &&
         (in_name(text_[position_]) || text_[position_] == '.' || text_.compare(position_, 2, "::") == 0)) {
    position_ += text_[position_] == ':' ? 2 : 1;
  }
  result.end = position_;
  result.text = text_.substr(result.begin, position_ - result.begin);
  last_end_ = position_;
  advance();
  return result;
}

bool Lexer::accept(char c) {
  if (!token_.is(c)) return false;
  next();
  return true;
}

bool Lexer::accept(std::string_view word) {
  if (!token_.is(word)) return false;
  next();
  return true;
}

void Lexer::expect(char c) {
  if (!accept(c)) refuse(token_.line, std::string("expected '") + c + "' before '" + std::string(token_.text) + "'");
}

bool Lexer::at_label() const {
  if (token_.kind != TokenKind::Name) return false;
  size_t at = token_.end;
  while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\t')) ++at;
  return at < text_.size() && text_[at] == ':' && !(at + 1 < text_.size() && text_[at + 1] == ':');
}
}  // namespace soft
