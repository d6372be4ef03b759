// Decides whose turn a fault is. See the header.
#include "injected.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "config.hpp"

namespace soft {
namespace {

// Whether this is the first to get here, of all processes that share the file.
bool first() {
  const std::string& file = config().faults_once;
  if (file.empty()) return true;
  const int made = open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (made < 0) return false;
  close(made);
  return true;
}
}  // namespace

int failed_call(const char* name, uint64_t number) {
  return number == config().fail_at && config().fail_call == name && first() ? config().fail_error : 0;
}

int failed_launch(uint64_t number) {
  return number == config().fault_at_launch && config().launch_error != 0 && first() ? config().launch_error : 0;
}

bool hangs(uint64_t number) { return number == config().hang_at_launch && first(); }
}  // namespace soft
