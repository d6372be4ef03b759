// The decoded program: what a PTX instruction becomes, and how a warp's registers lie in memory.
//
// A register is 32 values side by side, one a lane: 64 bytes for 16 bits, 128 for 32, 256 for 64. A predicate is one
// 32-bit lane mask. Registers that are never live together share a slot (flow.cpp), so a kernel's file stays in
// cache. A constant is a register too, in a read-only file that all warps of the kernel share: its offset is
// negative.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "machine.hpp"
#include "memory.hpp"

namespace soft {

struct Warp;
struct Instruction;
using Handler = void (*)(Warp& warp, const Instruction& instruction, uint32_t mask);

enum class Type : uint8_t {
  None,
  Pred,
  B8,
  B16,
  B32,
  B64,
  B128,
  U8,
  U16,
  U32,
  U64,
  S8,
  S16,
  S32,
  S64,
  F16,
  F16x2,
  BF16,
  BF16x2,
  F32,
  F64,
  TF32,
  E4M3,
  E5M2,
  E4M3x2,
  E5M2x2
};
int width_of(Type type);  // bytes; 0 for a predicate
bool is_signed(Type type);
bool is_float(Type type);
const char* name_of(Type type);
Type type_named(std::string_view name);  // None: no such type

constexpr int32_t kConstant = INT32_MIN;  // the sign bit of an operand that is an offset into the kernel's constants
constexpr int32_t kNoRegister = INT32_MAX;
constexpr int kMaxOperands = 18;

// Where an instruction was written.
struct SourceLine {
  int line = 0;         // in the PTX
  std::string text;     // as written, without white space around it
  std::string source;   // "kernels/norm.cu:41", from .loc; empty where there is none
  std::string counter;  // the opcode as counters name it: "ld.global", "mma.sync"
};

enum class Flow : uint8_t { Next, Branch, Table, Exit };
// What becomes of a source that was never written: it is used, or passed on. A pack passes it on where all its parts
// are such: compilers leave the other half of a pair unwritten when nobody reads it.
enum class Definedness : uint8_t { Uses, Moves, Selects, Packs };

// A register that some path leaves unwritten is tracked lane by lane where it is read and written.
struct Tracked {
  int32_t defined;  // offset in the file of the mask of lanes that have written it
  uint8_t place;    // in Instruction::r
  bool write;
};
struct Instruction {
  Handler handler = nullptr;
  int32_t guard = kNoRegister;          // predicate that lanes execute it under
  int32_t guard_defined = kNoRegister;  // of a guard that some path leaves unwritten: as Tracked::defined
  bool guard_negated = false;
  uint8_t count = 1;  // vector elements, matrices
  uint8_t width = 0;  // bytes of one element
  // Meaning by opcode: see the file that decodes it.
  uint8_t a = 0, b = 0, c = 0, d = 0;
  int64_t immediate = 0;
  int32_t target = -1, reconverge = -1;  // program counters of a branch
  int32_t r[kMaxOperands] = {};          // registers: at decode virtual numbers, then byte offsets into the file
  uint32_t writes = 0, reads = 0;        // bits over r: which are registers, and how they are used
  uint32_t index = 0;                    // in the kernel's code
  Flow flow = Flow::Next;
  Definedness definedness = Definedness::Uses;
  Handler inner = nullptr;                  // of one with tracked registers: what it does between the checks
  uint32_t first_tracked = 0, tracked = 0;  // in Code::tracked
  const SourceLine* line = nullptr;
};

enum class Special : uint8_t {
  TidX,
  TidY,
  TidZ,
  NtidX,
  NtidY,
  NtidZ,
  CtaidX,
  CtaidY,
  CtaidZ,
  NctaidX,
  NctaidY,
  NctaidZ,
  Laneid,
  Warpid,
  Nwarpid,
  Smid,
  Nsmid,
  Gridid,
  LanemaskEq,
  LanemaskLe,
  LanemaskLt,
  LanemaskGe,
  LanemaskGt,
  DynamicSmemSize,
  TotalSmemSize,
  Clock,
  ClockHi,
  Clock64,
  Globaltimer,
  GlobaltimerLo,
  GlobaltimerHi,
  Count
};

struct VirtualRegister {
  Type type = Type::None;
  std::string name;
  int32_t offset = -1;   // in the warp's file, once allocated
  int special = -1;      // a special register: preset when the warp starts
  bool suspect = false;  // some path reads it unwritten
  int32_t defined = -1;  // then: offset of the mask of lanes that have written it
};

struct Code final : Kernel {
  std::vector<Instruction> instructions;
  std::deque<SourceLine> lines;
  std::vector<VirtualRegister> registers;
  std::vector<uint8_t> constants;  // the read-only file
  std::vector<Tracked> tracked;
  std::vector<std::string> opcodes;  // as counters name them, each once
  std::vector<uint32_t> opcode_of;   // by instruction, its place in opcodes
  std::vector<std::vector<int32_t>> branch_tables;
  uint32_t file_bytes = 0;                            // of one warp
  uint32_t dynamic_offset = 0;                        // where dynamic shared memory begins
  std::vector<std::pair<Special, int32_t>> specials;  // and the offsets of their registers
};

struct Program final : Module {
  std::vector<std::string> files;
};
}  // namespace soft
