// Images: the machine parses PTX; a cubin is checked as a driver would and runs as the PTX with the same entries.
#include "image.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "config.hpp"
#include "driver.hpp"
#include "driver_profile.hpp"
#include "findings.hpp"
#include "image_files.hpp"

namespace soft {
namespace {

constexpr uint8_t kElfMagic[4] = {0x7f, 'E', 'L', 'F'};
constexpr uint32_t kFatbinMagic = 0xba55ed50, kFatbinWrapperMagic = 0x466243b1;

template <class T>
T read_at(const uint8_t* image, uint64_t offset) {
  T value;
  std::memcpy(&value, image + offset, sizeof value);
  return value;
}

std::string ptx_of_cubin(const Cubin& cubin) {
  const std::set<std::string> wanted(cubin.entries.begin(), cubin.entries.end());
  if (config().ptx_directory.empty()) unsupported("a cubin: the knob ptx_directory names no PTX to run in its place");
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(config().ptx_directory, error)) {
    if (file.path().extension() != ".ptx") continue;
    if (entries_of_ptx(file.path()) == wanted) return read_file(file.path());
  }
  unsupported("a cubin with entries that no PTX in " + config().ptx_directory +
              " has: " + (cubin.entries.empty() ? "none" : cubin.entries.front()));
}

std::string jit_message(const PtxError& error) {
  return "ptxas application ptx input, line " + std::to_string(error.line) + "; fatal   : " + error.what +
         "\nptxas fatal   : Ptx assembly aborted due to errors\n";
}

// What the just-in-time compiler of the played driver would say to this text, before looking at a single instruction.
void check_jit(const std::string& text, JitLog& log) {
  const char* disabled = std::getenv("CUDA_DISABLE_PTX_JIT");
  require(disabled == nullptr || std::strcmp(disabled, "1") != 0, kJitCompilationDisabled);
  require(config().ptx_jit_error == 0, config().ptx_jit_error);
  const PtxHeader header = read_header(text);
  const int newest = newest_ptx(config().driver_version);
  if (header.version_major * 10 + header.version_minor > newest) {
    log.error = "ptxas application ptx input, line 1; fatal   : Unsupported .version " +
                std::to_string(header.version_major) + "." + std::to_string(header.version_minor) +
                "; current version is '" + std::to_string(newest / 10) + "." + std::to_string(newest % 10) + "'\n";
    throw Failure{kUnsupportedPtxVersion};
  }
  if (header.target > config().capability) {
    log.error = "ptxas fatal   : SM version specified by .target is higher than default SM version assumed\n";
    throw Failure{kInvalidPtx};
  }
}

}  // namespace

// Lazy loading is what a driver does by itself since 12.2 (CUDA programming guide, lazy loading).
bool loads_eagerly() {
  const char* mode = std::getenv("CUDA_MODULE_LOADING");
  return mode != nullptr ? std::strcmp(mode, "EAGER") == 0 : config().driver_version < 12020;
}

int newest_ptx(int driver_version) {
  constexpr std::pair<int, int> kVersions[] = {{13010, 91}, {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86},
                                               {12050, 85}, {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}};
  for (const auto& [driver, ptx] : kVersions) {
    if (driver_version >= driver) return ptx;
  }
  return 80;
}

// A 64-bit ELF: the architecture lies in e_flags, by ABI version in its lowest byte or the one above.
Cubin read_cubin(const uint8_t* image) {
  require(image[4] == 2 && image[5] == 1, kInvalidImage);
  const uint32_t flags = read_at<uint32_t>(image, 48);
  Cubin cubin;
  cubin.capability = (image[8] >= 8 ? flags >> 8 : flags) & 0xff;
  const uint64_t sections = read_at<uint64_t>(image, 40);
  const uint16_t size = read_at<uint16_t>(image, 58), count = read_at<uint16_t>(image, 60);
  const uint16_t names = read_at<uint16_t>(image, 62);
  require(size >= 64 && names < count, kInvalidImage);
  const uint64_t strings = read_at<uint64_t>(image, sections + uint64_t{names} * size + 24);
  for (uint16_t at = 0; at < count; at++) {
    const uint64_t header = sections + uint64_t{at} * size;
    const std::string name = reinterpret_cast<const char*>(image + strings + read_at<uint32_t>(image, header));
    if (name.rfind(".text.", 0) == 0) cubin.entries.push_back(name.substr(6));
  }
  return cubin;
}

std::unique_ptr<LoadedModule> load_image(const void* image, Context& context, JitLog& log) {
  require(image != nullptr, kInvalidValue);
  const auto* bytes = static_cast<const uint8_t*>(image);
  std::string text;
  if (std::memcmp(bytes, kElfMagic, sizeof kElfMagic) == 0) {
    const Cubin cubin = read_cubin(bytes);
    const bool runs = cubin.capability / 10 == config().capability / 10 && cubin.capability <= config().capability;
    require(runs, kNoBinaryForGpu);
    text = ptx_of_cubin(cubin);
  } else {
    const uint32_t magic = read_at<uint32_t>(bytes, 0);
    if (magic == kFatbinMagic || magic == kFatbinWrapperMagic) unsupported("fat binaries");
    text = reinterpret_cast<const char*>(bytes);
    try {
      check_jit(text, log);
    } catch (const PtxError& error) {
      log.error = jit_message(error);
      throw Failure{kInvalidPtx};
    }
  }
  auto loaded = std::make_unique<LoadedModule>();
  loaded->context = &context;
  loaded->device = context.device;
  try {
    loaded->code = load_module(text, context.device);
  } catch (const PtxError& error) {
    log.error = jit_message(error);
    throw Failure{kInvalidPtx};
  }
  for (const auto& kernel : loaded->code->kernels) {
    auto function = std::make_shared<Function>();
    function->module = loaded.get();
    function->code = loaded->code;
    function->kernel = kernel.get();
    function->device = context.device;
    function->max_dynamic_shared = kSharedDefault - std::min(kernel->static_shared, kSharedDefault);
    const int registers = manifest_registers(config().ptx_directory, kernel->name, config().capability);
    if (registers != 0) function->registers = registers;
    function->warm = loads_eagerly();
    driver().functions[function.get()] = function;
    loaded->functions[kernel->name] = std::move(function);
  }
  log.info = "ptxas info    : " + std::to_string(loaded->code->kernels.size()) + " entries for 'sm_" +
             std::to_string(config().capability) + "'\n";
  return loaded;
}
}  // namespace soft
