// Reads files and keeps the entries of PTX. See the header. The driver's lock guards it.
#include "image_files.hpp"

#include <fstream>
#include <map>
#include <sstream>

namespace soft {
namespace {

std::set<std::string> find_entries(const std::string& text) {
  std::set<std::string> names;
  for (size_t at = text.find(".entry"); at != std::string::npos; at = text.find(".entry", at + 1)) {
    const size_t start = text.find_first_not_of(" \t\r\n", at + 6);
    const size_t end = text.find_first_of(" \t\r\n(", start);
    if (start != std::string::npos && end != std::string::npos) names.insert(text.substr(start, end - start));
  }
  return names;
}
}  // namespace

FileState state_of(const std::filesystem::path& file) {
  std::error_code missing;
  const auto time = std::filesystem::last_write_time(file, missing);
  const auto bytes = std::filesystem::file_size(file, missing);
  return missing ? FileState{} : FileState{time, bytes};
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::set<std::string>& entries_of_ptx(const std::filesystem::path& file) {
  static std::map<std::filesystem::path, std::pair<FileState, std::set<std::string>>> known;
  auto& [state, entries] = known[file];
  if (const FileState now = state_of(file); state != now) {
    entries = find_entries(read_file(file));
    state = now;
  }
  return entries;
}
}  // namespace soft
