// Reads ptx/manifest.json, as far as registers go. Apart from image.cpp because it holds a JSON reader.
#include <cctype>
#include <cstdlib>
#include <map>
#include <vector>

#include "image.hpp"
#include "image_files.hpp"

namespace soft {
namespace {

struct Json {
  double number = 0;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> members;
  const Json* find(const std::string& name) const {
    const auto found = members.find(name);
    return found == members.end() ? nullptr : &found->second;
  }
};

// Of well-formed JSON; of anything else it makes what it can and never reads past the end.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  Json value() {
    Json made;
    switch (peek()) {
      case '{':
        list('}', [&] {
          std::string name = string();
          if (peek() == ':') at_++;
          made.members[name] = value();
        });
        break;
      case '[': list(']', [&] { made.items.push_back(value()); }); break;
      case '"': made.text = string(); break;
      default: {
        const size_t start = at_;
        while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || of_number(text_[at_])))
          at_++;
        made.text = text_.substr(start, at_ - start);
        made.number = std::strtod(made.text.c_str(), nullptr);
        if (at_ == start) at_++;
      }
    }
    return made;
  }

 private:
  static bool of_number(char c) { return c == '-' || c == '+' || c == '.'; }

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) at_++;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  template <class Item>
  void list(char end, Item item) {
    at_++;
    while (peek() != end && at_ < text_.size()) {
      item();
      if (peek() == ',') at_++;
    }
    at_++;
  }

  std::string string() {
    std::string made;
    if (peek() != '"') {
      at_++;
      return made;
    }
    for (at_++; at_ < text_.size() && text_[at_] != '"'; at_++) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) at_++;
      made += text_[at_];
    }
    at_++;
    return made;
  }

  const std::string& text_;
  size_t at_ = 0;
};

using Registers = std::map<std::string, std::map<std::string, int>>;  // by entry and architecture ("sm_80")

Registers read_registers(const std::string& text) {
  Registers read;
  const Json manifest = Reader(text).value();
  const Json* modules = manifest.find("modules");
  if (modules == nullptr) return read;
  for (const auto& [name, module] : modules->members) {
    const Json* entries = module.find("entries");
    if (entries == nullptr) continue;
    for (const auto& [entry, known] : entries->members) {
      const Json* architectures = known.find("architectures");
      if (architectures == nullptr) continue;
      for (const auto& [architecture, figures] : architectures->members) {
        const Json* registers = figures.find("registers");
        if (registers != nullptr) read[entry].emplace(architecture, static_cast<int>(registers->number));
      }
    }
  }
  return read;
}

// Asked for every entry of every module, read when the file is another.
const Registers& registers_of(const std::string& file) {
  static std::string name;
  static FileState state;
  static Registers registers;
  if (const FileState now = state_of(file); name != file || state != now) {
    registers = read_registers(read_file(file));
    name = file;
    state = now;
  }
  return registers;
}
}  // namespace

int manifest_registers(const std::string& directory, const std::string& entry, int capability) {
  const Registers& registers = registers_of(directory + "/manifest.json");
  const auto architectures = registers.find(entry);
  if (architectures == registers.end()) return 0;
  // The image that this card would take: of its own major, the newest that is no newer.
  for (int minor = capability; minor >= capability / 10 * 10; minor--) {
    const auto found = architectures->second.find("sm_" + std::to_string(minor));
    if (found != architectures->second.end()) return found->second;
  }
  return 0;
}
}  // namespace soft
