// The cursor: modifiers in their order, operands against types.
#include "decode.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace soft {
namespace {
struct TypeFact {
  const char* name;
  int width;
  bool is_signed, is_float;
};
constexpr TypeFact kTypes[] = {
    {"none", 0, false, false}, {"pred", 0, false, false}, {"b8", 1, false, false},    {"b16", 2, false, false},
    {"b32", 4, false, false},  {"b64", 8, false, false},  {"b128", 16, false, false}, {"u8", 1, false, false},
    {"u16", 2, false, false},  {"u32", 4, false, false},  {"u64", 8, false, false},   {"s8", 1, true, false},
    {"s16", 2, true, false},   {"s32", 4, true, false},   {"s64", 8, true, false},    {"f16", 2, true, true},
    {"f16x2", 4, true, true},  {"bf16", 2, true, true},   {"bf16x2", 4, true, true},  {"f32", 4, true, true},
    {"f64", 8, true, true},    {"tf32", 4, true, true},   {"e4m3", 1, true, true},    {"e5m2", 1, true, true},
    {"e4m3x2", 2, true, true}, {"e5m2x2", 2, true, true},
};

bool is_bits(Type type) { return type == Type::B8 || type == Type::B16 || type == Type::B32 || type == Type::B64; }
bool packed_or_odd(Type type) { return type >= Type::F16 && type != Type::F32 && type != Type::F64; }

// PTX manual, "Operand Type Checking": bits agree with all of their size, integers with integers, floats with floats.
bool agrees(Type reg, Type type, bool wide) {
  if ((reg == Type::Pred) != (type == Type::Pred)) return false;
  if (reg == Type::Pred) return true;
  const bool same = width_of(reg) == width_of(type);
  if (!same && !(wide && width_of(reg) > width_of(type))) return false;
  if (is_bits(reg)) return true;
  if (!same) return !is_float(reg) && !is_float(type);
  if (is_bits(type)) return true;
  if (packed_or_odd(type)) return reg == type;
  return is_float(reg) == is_float(type);
}
}  // namespace

int width_of(Type type) { return kTypes[int(type)].width; }
bool is_signed(Type type) { return kTypes[int(type)].is_signed; }
bool is_float(Type type) { return kTypes[int(type)].is_float; }
const char* name_of(Type type) { return kTypes[int(type)].name; }
Type type_named(std::string_view name) {
  for (size_t i = 1; i < std::size(kTypes); ++i) {
    if (name == kTypes[i].name) return Type(i);
  }
  return Type::None;
}

int32_t Constants::intern(uint64_t value, int width) {
  if (width < 8) value &= (1ull << (8 * width)) - 1;
  const auto [place, fresh] = known_.try_emplace({value, width}, 0);
  if (fresh) {
    const size_t offset = bytes_.size();
    bytes_.resize(offset + std::max<size_t>(64, size_t(width) * kLanes));
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(&bytes_[offset + size_t(lane * width)], &value, size_t(width));
    place->second = kConstant | int32_t(offset);
  }
  return place->second;
}

Decoder::Decoder(const PtxHeader& header_, Function& function_, Constants& constants_, const Statement& statement,
                 Instruction& out)
    : ins(out), function(function_), header(header_), constants(constants_), statement_(statement) {
  ins.line = statement.line;
  ins.guard = statement.guard >= 0 ? statement.guard : kNoRegister;
  ins.guard_negated = statement.guard_negated;
  std::fill(std::begin(ins.r), std::end(ins.r), kNoRegister);
}

void Decoder::refuse(const std::string& what) const {
  soft::refuse(statement_.line->line, what + ": " + statement_.line->text);
}
void Decoder::not_built(const std::string& what) const {
  soft::not_built(statement_.line->line, what + ": " + statement_.line->text);
}

std::string_view Decoder::modifier() const { return ends() ? std::string_view() : statement_.opcode[modifier_]; }

bool Decoder::take(std::string_view word) {
  if (ends() || modifier() != word) return false;
  ++modifier_;
  return true;
}

int Decoder::take_one_of(std::initializer_list<std::string_view> words) {
  int index = 0;
  for (const auto& word : words) {
    if (take(word)) return index;
    ++index;
  }
  return -1;
}

int Decoder::want_one_of(std::initializer_list<std::string_view> words) {
  const int index = take_one_of(words);
  if (index < 0) {
    std::string list;
    for (const auto& word : words) list += " ." + std::string(word);
    not_built("'" + std::string(modifier()) + "' where one of" + list + " is expected");
  }
  return index;
}

Type Decoder::take_type() {
  const Type type = type_named(modifier());
  if (type == Type::None) not_built("'" + std::string(modifier()) + "' where a type is expected");
  ++modifier_;
  return type;
}

Type Decoder::want_type(std::initializer_list<Type> allowed) {
  const Type type = take_type();
  if (std::find(allowed.begin(), allowed.end(), type) == allowed.end()) {
    not_built("type ." + std::string(name_of(type)) + " in this form");
  }
  return type;
}

Type Decoder::last_type() const {
  return statement_.opcode.size() > 1 ? type_named(statement_.opcode.back()) : Type::None;
}

void Decoder::need(int version, int target) {
  if (header.version_major * 10 + header.version_minor < version) {
    refuse("needs PTX " + std::to_string(version / 10) + "." + std::to_string(version % 10));
  }
  if (header.target < target) refuse("needs sm_" + std::to_string(target));
}

const Operand& Decoder::peek() const {
  if (!left()) refuse("too few operands");
  return statement_.operands[operand_];
}

const Operand& Decoder::next() {
  const Operand& result = peek();
  ++operand_;
  return result;
}

int Decoder::add(int32_t value, bool is_register, bool write) {
  if (places_ == kMaxOperands) not_built("so many operands");
  ins.r[places_] = value;
  if (is_register) (write ? ins.writes : ins.reads) |= 1u << places_;
  return places_++;
}

int Decoder::add_sink(Type type) {
  function.code->registers.push_back({width_of(type) == 1 ? Type::B16 : type, "_"});
  return add(int32_t(function.code->registers.size() - 1), true, true);
}

int Decoder::add_register(int32_t reg, bool write) { return add(reg, true, write); }

int Decoder::carry(bool write, bool read) {
  auto& registers = function.code->registers;
  int32_t found = -1;
  for (size_t i = registers.size(); i-- > 0 && found < 0;) {
    if (registers[i].name == "carry flag") found = int32_t(i);
  }
  if (found < 0) {
    registers.push_back({Type::Pred, "carry flag"});
    found = int32_t(registers.size() - 1);
  }
  const int place = add(found, true, write);
  if (read) ins.reads |= 1u << place;
  return place;
}

void Decoder::check(const Operand& operand, Type type, bool wide) const {
  const VirtualRegister& reg = function.code->registers[size_t(operand.reg)];
  if (!agrees(reg.type, type, wide)) {
    refuse(operand.name + " is ." + name_of(reg.type) + ", the instruction's type is ." + name_of(type));
  }
}

uint64_t Decoder::bits(const Operand& operand, Type type) const {
  if (operand.kind == OperandKind::Float) {
    if (type == Type::F32 || type == Type::B32) {
      if (operand.single) return operand.float_bits;
      return std::bit_cast<uint32_t>(float(std::bit_cast<double>(operand.float_bits)));
    }
    if (type == Type::F64 || type == Type::B64) {
      if (!operand.single) return operand.float_bits;
      return std::bit_cast<uint64_t>(double(std::bit_cast<float>(uint32_t(operand.float_bits))));
    }
    refuse("a floating-point constant of type ." + std::string(name_of(type)));
  }
  if (operand.kind == OperandKind::Symbol && operand.variable >= 0) {
    if (is_float(type) || width_of(type) < 4) refuse("an address of type ." + std::string(name_of(type)));
    return function.variables[size_t(operand.variable)].address + uint64_t(operand.integer);
  }
  if (operand.kind == OperandKind::Symbol) refuse("no register or variable " + operand.name);
  if (operand.kind != OperandKind::Integer)
    refuse("operand " + std::to_string(operand_) + " is neither register nor constant");
  if (is_float(type)) refuse("an integer constant of type ." + std::string(name_of(type)));
  if (type == Type::Pred) return operand.integer ? ~0u : 0;
  return uint64_t(operand.integer);
}

int Decoder::add_out(const Operand& operand, Type type) {
  if (operand.kind == OperandKind::Sink) return add_sink(type);
  if (operand.kind != OperandKind::Register || operand.negated) refuse("the destination is no register");
  if (operand.reg >= 0 && function.code->registers[size_t(operand.reg)].special >= 0)
    refuse(operand.name + " is read-only");
  check(operand, type, false);
  return add(operand.reg, true, true);
}

int Decoder::add_in(const Operand& operand, Type type) {
  if (operand.kind == OperandKind::Register) {
    if (operand.negated) refuse("a negated operand where none may be");
    if (operand.second >= 0 || operand.first_sink || operand.second_sink) refuse("'|' in a source");
    const int special = function.code->registers[size_t(operand.reg)].special;
    if (special >= 0 && opcode() != "mov") refuse(operand.name + " but in mov and cvt");
    if (special >= int(Special::Clock)) not_built(operand.name + " in this mov");
    check(operand, type, false);
    return add(operand.reg, true, false);
  }
  return add(constants.intern(bits(operand, type), type == Type::Pred ? 4 : width_of(type)), false, false);
}

int Decoder::out(Type type) {
  if (peek().kind == OperandKind::Sink && opcode() != "atom") refuse("'_' where none may be");
  return add_out(next(), type);
}
int Decoder::in(Type type) { return add_in(next(), type); }

int Decoder::add_wide(const Operand& operand, Type type, int width, bool write) {
  if (operand.kind == OperandKind::Sink && write)
    return add_sink(width == 2 ? Type::B16 : width == 4 ? Type::B32 : Type::B64);
  if (operand.kind != OperandKind::Register || operand.negated || operand.second >= 0) {
    if (write) refuse("the destination is no register");
    return add(constants.intern(bits(operand, type), width), false, false);
  }
  const bool special = function.code->registers[size_t(operand.reg)].special >= 0;
  if (special && write) refuse(operand.name + " is read-only");
  if (special && opcode() != "cvt") refuse(operand.name + " but in mov and cvt");
  check(operand, type, true);
  return add(operand.reg, true, write);
}

int Decoder::out_wide(Type type, int* width) {
  const Operand& operand = next();
  if (operand.kind == OperandKind::Sink) refuse("'_' where none may be");
  const bool named = operand.kind == OperandKind::Register;
  *width = std::max(named ? width_of(function.code->registers[size_t(operand.reg)].type) : width_of(type), 2);
  return add_wide(operand, type, *width, true);
}

int Decoder::in_wide(Type type, int* width) {
  const Operand& operand = next();
  const bool named = operand.kind == OperandKind::Register;
  *width = std::max(named ? width_of(function.code->registers[size_t(operand.reg)].type) : width_of(type), 2);
  return add_wide(operand, type, *width, false);
}

void Decoder::out_pair(Type type, bool second_wanted, int* second) {
  const Operand& operand = next();
  if (operand.first_sink || operand.kind == OperandKind::Sink) {
    add_sink(type);
  } else {
    if (operand.kind != OperandKind::Register || operand.negated) refuse("the destination is no register");
    if (function.code->registers[size_t(operand.reg)].special >= 0) refuse(operand.name + " is read-only");
    check(operand, type, false);
    add(operand.reg, true, true);
  }
  const bool given = operand.second >= 0;
  if ((given || operand.second_sink) && !second_wanted) refuse("a second destination where none may be");
  if (given && function.code->registers[size_t(operand.second)].type != Type::Pred)
    refuse("the second destination is no predicate");
  *second = add(given ? operand.second : kNoRegister, given, true);
}

int Decoder::in_predicate(bool* negated) {
  const Operand& operand = next();
  *negated = operand.negated;
  if (operand.kind == OperandKind::Integer) return add_in(operand, Type::Pred);
  if (operand.kind != OperandKind::Register) refuse("expected a predicate");
  check(operand, Type::Pred, false);
  return add(operand.reg, true, false);
}

void Decoder::out_vector(Type type, int count, bool sinks) {
  const Operand& operand = next();
  if (operand.kind != OperandKind::Vector || int(operand.parts.size()) != count) {
    refuse("expected a vector of " + std::to_string(count));
  }
  for (const Operand& part : operand.parts) {
    if (part.kind == OperandKind::Sink && !sinks) refuse("'_' where none may be");
    add_out(part, type);
  }
}

void Decoder::in_vector(Type type, int count) {
  const Operand& operand = next();
  if (operand.kind != OperandKind::Vector || int(operand.parts.size()) != count) {
    refuse("expected a vector of " + std::to_string(count));
  }
  for (const Operand& part : operand.parts) add_in(part, type);
}

int64_t Decoder::integer() {
  const Operand& operand = next();
  if (operand.kind != OperandKind::Integer) refuse("expected an integer constant");
  return operand.integer;
}

void Decoder::address(bool allow_register) {
  const Operand& operand = next();
  if (operand.kind != OperandKind::Address) refuse("expected an address in brackets");
  ins.d = 8;
  ins.immediate = operand.integer;
  if (operand.reg >= 0) {
    const Type type = function.code->registers[size_t(operand.reg)].type;
    if (!allow_register || is_float(type) || width_of(type) < 4) refuse(operand.name + " cannot hold an address");
    ins.d = uint8_t(width_of(type));
    add(operand.reg, true, false);
    return;
  }
  const uint64_t base = operand.variable >= 0 ? function.variables[size_t(operand.variable)].address : 0;
  add(constants.intern(base, 8), false, false);
}

void Decoder::done(Handler handler) {
  if (!ends()) not_built("modifier ." + std::string(modifier()));
  if (left()) refuse("too many operands");
  ins.handler = handler;
}
}  // namespace soft
