// The files that loading reads. What they say is asked for again and again (a cubin's PTX among all, the registers of
// every entry), so it is kept until a file changes.
#pragma once
#include <filesystem>
#include <set>
#include <string>

namespace soft {

// A file as it is now, to tell whether what was read from it still holds.
struct FileState {
  std::filesystem::file_time_type time{};
  uintmax_t bytes = 0;
  bool operator==(const FileState&) const = default;
};
FileState state_of(const std::filesystem::path& file);  // all zero where there is none
std::string read_file(const std::filesystem::path& file);

const std::set<std::string>& entries_of_ptx(const std::filesystem::path& file);
}  // namespace soft
