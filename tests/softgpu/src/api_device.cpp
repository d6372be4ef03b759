// cuInit, versions and devices.
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "config.hpp"
#include "driver.hpp"
#include "driver_profile.hpp"
#include "visible_devices.hpp"

using namespace soft;

namespace {

// The result of a call that a knob makes fail, for so many seconds after it was first made.
int injected(int error, double seconds, double& first) {
  if (error == 0) return kSuccess;
  if (first < 0) first = seconds_now();
  return seconds == 0 || seconds_now() - first < seconds ? error : kSuccess;
}

std::string pci_name(const Device& device) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02X:00.0", 1 + device.card);
  return text;
}

int get_uuid(Uuid* out, int device, bool of_slice) {
  return call("cuDeviceGetUuid", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    const int card = device_at(device).card;
    const UuidBytes uuid = of_slice ? slice_uuid(card) : card_uuid(card);
    std::copy(uuid.begin(), uuid.end(), out->bytes);
    return kSuccess;
  });
}

bool can_reach(int device, int peer) { return device != peer && config().peer_access && !config().mig; }
}  // namespace

SOFT_API int cuInit(unsigned flags) {
  if (forked()) return kNotInitialized;  // before the lock, which another thread of the parent may hold for ever
  return call("cuInit", kAlways, [&](Call&) -> int {
    Driver& state = driver();
    require(flags == 0, kInvalidValue);
    if (state.process == getpid()) return state.sticky;
    const int error = injected(config().init_error, config().init_error_seconds, state.first_init);
    if (error != 0) return error;
    const std::vector<int> cards = visible_cards();
    require(!cards.empty(), kNoDevice);
    for (const int card : cards) state.devices.push_back({.card = card});
    state.process = getpid();
    return kSuccess;
  });
}

SOFT_API int cuDriverGetVersion(int* version) {
  return call("cuDriverGetVersion", kAlways, [&](Call&) -> int {
    require(version != nullptr, kInvalidValue);
    *version = config().driver_version;
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", kInitialized, [&](Call&) -> int {
    require(count != nullptr, kInvalidValue);
    *count = static_cast<int>(driver().devices.size());
    return kSuccess;
  });
}

SOFT_API int cuDeviceGet(int* device, int ordinal) {
  return call("cuDeviceGet", kInitialized, [&](Call&) -> int {
    require(device != nullptr, kInvalidValue);
    device_at(ordinal);
    *device = ordinal;
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetName(char* name, int length, int device) {
  return call("cuDeviceGetName", kInitialized, [&](Call&) -> int {
    require(name != nullptr && length > 0, kInvalidValue);
    device_at(device);
    const std::string full = std::string(profile().name) + (config().mig ? " MIG 1g.10gb" : "");
    std::snprintf(name, length, "%s", full.c_str());
    return kSuccess;
  });
}

// The second version tells MIG devices apart; the first gives the card that they are slices of.
SOFT_API int cuDeviceGetUuid_v2(Uuid* uuid, int device) { return get_uuid(uuid, device, config().mig); }
SOFT_API int cuDeviceGetUuid(Uuid* uuid, int device) { return get_uuid(uuid, device, false); }

SOFT_API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  return call("cuDeviceTotalMem", kInitialized, [&](Call&) -> int {
    require(bytes != nullptr, kInvalidValue);
    device_at(device);
    *bytes = config().memory_bytes;
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetAttribute(int* value, int number, int device) {
  return call("cuDeviceGetAttribute", kInitialized, [&](Call&) -> int {
    require(value != nullptr, kInvalidValue);
    const auto found = attribute(device_at(device).card, number);
    require(found.has_value(), kInvalidValue);
    *value = *found;
    return kSuccess;
  });
}

SOFT_API int cuDeviceComputeCapability(int* major, int* minor, int device) {
  return call("cuDeviceComputeCapability", kInitialized, [&](Call&) -> int {
    require(major != nullptr && minor != nullptr, kInvalidValue);
    device_at(device);
    *major = config().capability / 10;
    *minor = config().capability % 10;
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetPCIBusId(char* text, int length, int device) {
  return call("cuDeviceGetPCIBusId", kInitialized, [&](Call&) -> int {
    require(text != nullptr && length > 0, kInvalidValue);
    std::snprintf(text, length, "%s", pci_name(device_at(device)).c_str());
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetByPCIBusId(int* device, const char* text) {
  return call("cuDeviceGetByPCIBusId", kInitialized, [&](Call&) -> int {
    require(device != nullptr && text != nullptr, kInvalidValue);
    for (int ordinal = 0; ordinal < static_cast<int>(driver().devices.size()); ordinal++) {
      if (strcasecmp(pci_name(driver().devices[ordinal]).c_str(), text) != 0) continue;
      *device = ordinal;
      return kSuccess;
    }
    return kInvalidDevice;
  });
}

SOFT_API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cuDeviceCanAccessPeer", kInitialized, [&](Call&) -> int {
    require(can != nullptr, kInvalidValue);
    device_at(device);
    device_at(peer);
    *can = can_reach(device, peer);
    return kSuccess;
  });
}

SOFT_API int cuDeviceGetP2PAttribute(int* value, int number, int device, int peer) {
  return call("cuDeviceGetP2PAttribute", kInitialized, [&](Call&) -> int {
    require(value != nullptr && number >= 1 && number <= 4 && device != peer, kInvalidValue);
    device_at(device);
    device_at(peer);
    *value = number == 1 ? 0 : can_reach(device, peer);  // 1: performance rank
    return kSuccess;
  });
}

// --- primary contexts --------------------------------------------------------------------------------------------

SOFT_API int cuDevicePrimaryCtxRetain(void** out, int ordinal) {
  return call("cuDevicePrimaryCtxRetain", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    Device& device = device_at(ordinal);
    if (device.primary == nullptr) {
      const int error = injected(config().context_error, config().context_error_seconds, driver().first_context);
      if (error != 0) return error;
      device.primary = new_context(ordinal, device.primary_flags, true);
    }
    device.retained++;
    *out = device.primary;
    return kSuccess;
  });
}

SOFT_API int cuDevicePrimaryCtxRelease_v2(int ordinal) {
  return call("cuDevicePrimaryCtxRelease", kInitialized | kIdle, [&](Call& call) -> int {
    Device& device = device_at(ordinal);
    require(device.retained > 0, kInvalidContext);
    if (--device.retained == 0 && device.primary != nullptr) destroy_context(call, *device.primary);
    return kSuccess;
  });
}

SOFT_API int cuDevicePrimaryCtxReset_v2(int ordinal) {
  return call("cuDevicePrimaryCtxReset", kInitialized | kIdle, [&](Call& call) -> int {
    Device& device = device_at(ordinal);
    if (device.primary != nullptr) destroy_context(call, *device.primary);
    return kSuccess;
  });
}

SOFT_API int cuDevicePrimaryCtxGetState(int ordinal, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", kInitialized, [&](Call&) -> int {
    require(flags != nullptr && active != nullptr, kInvalidValue);
    const Device& device = device_at(ordinal);
    *flags = device.primary_flags;
    *active = device.primary != nullptr;
    return kSuccess;
  });
}

SOFT_API int cuDevicePrimaryCtxSetFlags_v2(int ordinal, unsigned flags) {
  return call("cuDevicePrimaryCtxSetFlags", kInitialized, [&](Call&) -> int {
    require((flags & ~0xffu) == 0, kInvalidValue);
    Device& device = device_at(ordinal);
    device.primary_flags = flags;
    if (device.primary != nullptr) device.primary->flags = flags;
    return kSuccess;
  });
}

// --- contexts of one's own ---------------------------------------------------------------------------------------

namespace {

int create_context(void** out, unsigned flags, int ordinal) {
  return call("cuCtxCreate", kInitialized, [&](Call&) -> int {
    require(out != nullptr, kInvalidValue);
    device_at(ordinal);
    const int error = injected(config().context_error, config().context_error_seconds, driver().first_context);
    if (error != 0) return error;
    Context* context = new_context(ordinal, flags, false);
    thread_state().stack.push_back(context);
    *out = context;
    return kSuccess;
  });
}
}  // namespace

SOFT_API int cuCtxCreate_v2(void** out, unsigned flags, int device) { return create_context(out, flags, device); }

SOFT_API int cuCtxCreate_v4(void** out, void* parameters, unsigned flags, int device) {
  if (parameters != nullptr) {
    return call("cuCtxCreate with parameters", kAlways, [](Call& call) -> int { unsupported(call.name); });
  }
  return create_context(out, flags, device);
}

SOFT_API int cuCtxDestroy_v2(void* handle) {
  return call("cuCtxDestroy", kInitialized | kIdle, [&](Call& call) -> int {
    Context& context = driver().contexts.get(handle, kInvalidContext);
    require(!context.primary, kInvalidContext);
    destroy_context(call, context);
    return kSuccess;
  });
}
