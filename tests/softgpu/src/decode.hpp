// One PTX statement into one Instruction: the cursor over modifiers and operands that every opcode's decoder uses.
//
// Modifiers are taken in the order the manual writes them, so a wrong order is refused as ptxas refuses it. Operands
// are checked against the instruction's type (PTX manual, "Operand Type Checking") and become registers or constants.
#pragma once
#include <initializer_list>
#include <map>
#include <string_view>
#include <unordered_map>

#include "parse.hpp"

namespace soft {

// Constants of one kernel, each value broadcast to 32 lanes.
class Constants {
 public:
  explicit Constants(std::vector<uint8_t>& bytes) : bytes_(bytes) {}
  int32_t intern(uint64_t value, int width);

 private:
  std::vector<uint8_t>& bytes_;
  std::map<std::pair<uint64_t, int>, int32_t> known_;
};

class Decoder {
 public:
  Decoder(const PtxHeader& header, Function& function, Constants& constants, const Statement& statement,
          Instruction& out);

  // --- modifiers
  const std::string& opcode() const { return statement_.opcode[0]; }
  bool take(std::string_view modifier);
  int take_one_of(std::initializer_list<std::string_view> words);  // its index, -1: none of them
  int want_one_of(std::initializer_list<std::string_view> words);  // refused where it is none of them
  Type take_type();                                                // refused where it is no type
  Type want_type(std::initializer_list<Type> allowed);
  Type last_type() const;  // of the opcode as written; None: its last word is no type
  bool ends() const { return modifier_ == statement_.opcode.size(); }
  std::string_view modifier() const;
  size_t modifiers_left() const { return statement_.opcode.size() - modifier_; }
  void need(int version, int target);  // the PTX version (as 74 for 7.4) and architecture that this form begins with

  // --- operands, in their order
  size_t left() const { return statement_.operands.size() - operand_; }
  const Operand& peek() const;
  const Operand& next();
  int out(Type type);  // returns its place in Instruction::r; a sink is kNoRegister
  int in(Type type);
  int out_wide(Type type, int* width);  // the register may be wider than the type: ld, cvt
  int in_wide(Type type, int* width);
  void out_pair(Type type, bool second_wanted, int* second);  // d or d|p
  int in_predicate(bool* negated);
  void out_vector(Type type, int count, bool sinks);
  void in_vector(Type type, int count);
  int64_t integer();  // an immediate operand
  void address(bool allow_register =
                   true);  // register or constant to r, offset to Instruction::immediate, a 4- or 8-byte base to d
  int add_out(const Operand& operand, Type type);
  int add_wide(const Operand& operand, Type type, int width, bool write);  // of a constant or a sink: this wide
  int add_in(const Operand& operand, Type type);
  int add_register(int32_t reg, bool write);  // one the text does not name: the carry flag
  int carry(bool write, bool read);
  void done(Handler handler);  // nothing may be left over

  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void not_built(const std::string& what) const;
  Instruction& ins;
  Function& function;
  const PtxHeader& header;
  Constants& constants;

 private:
  int add(int32_t value, bool is_register, bool write);
  int add_sink(Type type);  // a register that nothing reads
  void check(const Operand& operand, Type type, bool wide) const;
  uint64_t bits(const Operand& operand, Type type) const;
  const Statement& statement_;
  size_t modifier_ = 1, operand_ = 0;
  int places_ = 0;
};

using Decode = void (*)(Decoder&);
using Opcodes = std::unordered_map<std::string_view, Decode>;
void add_integer_opcodes(Opcodes& table);
void add_bit_opcodes(Opcodes& table);
void add_wide_opcodes(Opcodes& table);
void add_compare_opcodes(Opcodes& table);
void add_float_opcodes(Opcodes& table);
void add_approximate_opcodes(Opcodes& table);
void add_move_opcodes(Opcodes& table);
void add_convert_opcodes(Opcodes& table);
void add_memory_opcodes(Opcodes& table);
void add_address_opcodes(Opcodes& table);
void add_atomic_opcodes(Opcodes& table);
void add_async_opcodes(Opcodes& table);
void add_warp_opcodes(Opcodes& table);
void add_barrier_opcodes(Opcodes& table);
void add_control_opcodes(Opcodes& table);
void add_matrix_opcodes(Opcodes& table);

// Opcodes that integers and floats share come here by type.
void decode_float_arithmetic(Decoder& d);  // add sub mul fma mad min max abs neg div of f32 and f64
void decode_division(Decoder& d);
void decode_half_arithmetic(Decoder& d);      // the same of f16 and bf16
void decode_carry(Decoder& d);                // add.cc and sub.cc
void decode_carry_mad(Decoder& d, int part);  // mad.lo.cc and mad.hi.cc, from the .cc on

// All statements of a function, its variables laid out. Throws PtxError or Unsupported.
void decode(const ParsedModule& module, Function& function);
// Turns pairs of mul and add into fma where the seed says so (exec_contract.cpp).
void contract(Function& function);
// Control flow: branch targets, reconvergence, undefined reads, register slots (flow.cpp).
void resolve_flow(Function& function);
void run_tracked(Warp& warp, const Instruction& instruction, uint32_t mask);  // checks, then Instruction::inner
void report_undefined(Warp& warp, uint32_t lanes);                            // that read what they have not written
}  // namespace soft
