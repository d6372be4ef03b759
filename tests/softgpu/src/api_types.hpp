// The driver API's own types, as far as the soft GPU knows them: result codes and the structs that cross the C ABI.
//
// Written down here so that the library builds where no CUDA header is. Layouts are those of CUDA 12 and 13.
#pragma once
#include <cstddef>
#include <cstdint>

#define SOFT_API extern "C" __attribute__((visibility("default")))

namespace soft {

enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kUnsupportedLimit = 215,
  kPeerAccessUnsupported = 217,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kJitCompilationDisabled = 223,
  kFileNotFound = 301,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kLaunchOutOfResources = 701,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kPrimaryContextActive = 708,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
  kGraphExecUpdateFailure = 910,
  kUnknown = 999,
};

using DevicePointer = uint64_t;
using HostFunction = void (*)(void*);

struct Uuid { uint8_t bytes[16]; };

struct LaunchAttribute {  // CUlaunchAttribute: an id, then a value of 64 bytes at offset 8
  int id;
  int padding;
  union {
    int integer;
    uint32_t dimension[3];
    uint8_t bytes[64];
  } value;
};

struct LaunchConfig {  // CUlaunchConfig
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

struct KernelNodeParameters {  // CUDA_KERNEL_NODE_PARAMS_v2
  void* function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  void** parameters;
  void** extra;
  void* kernel;   // of a library, where function is null
  void* context;
};

struct MemsetNodeParameters {  // CUDA_MEMSET_NODE_PARAMS
  DevicePointer to;
  size_t pitch;
  uint32_t value, element_bytes;
  size_t width, height;
};

struct HostNodeParameters {  // CUDA_HOST_NODE_PARAMS
  HostFunction function;
  void* data;
};

enum class MemoryType : int { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

struct Copy2D {  // CUDA_MEMCPY2D
  size_t from_x, from_y;
  MemoryType from_type;
  const void* from_host;
  DevicePointer from_device;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  MemoryType to_type;
  void* to_host;
  DevicePointer to_device;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};

struct Copy3D {  // CUDA_MEMCPY3D
  size_t from_x, from_y, from_z, from_lod;
  MemoryType from_type;
  const void* from_host;
  DevicePointer from_device;
  void* from_array;
  void* from_reserved;
  size_t from_pitch, from_height;
  size_t to_x, to_y, to_z, to_lod;
  MemoryType to_type;
  void* to_host;
  DevicePointer to_device;
  void* to_array;
  void* to_reserved;
  size_t to_pitch, to_height;
  size_t width, height, depth;
};

struct GraphInstantiateParameters {  // CUDA_GRAPH_INSTANTIATE_PARAMS
  uint64_t flags;
  void* upload_stream;
  void* error_node;
  int result;
};

struct GraphUpdateResult {  // CUgraphExecUpdateResultInfo
  int result;
  void* error_node;
  void* error_from_node;
};

static_assert(sizeof(LaunchConfig) == 56 && sizeof(LaunchAttribute) == 72);
static_assert(sizeof(KernelNodeParameters) == 72 && sizeof(MemsetNodeParameters) == 40);
static_assert(sizeof(Copy2D) == 128 && sizeof(Copy3D) == 200);
}  // namespace soft
