// mov: registers, constants, addresses, special registers, and packing and unpacking of vectors. PTX manual 9.7.9.
#include "exec.hpp"

namespace soft {
namespace {
template <class T>
struct Move {
  static constexpr Handler run = map1<T, T, [](T a) { return a; }>;
};

void move_predicate(Warp& warp, const Instruction& i, uint32_t mask) {
  write_predicate(warp, i.r[0], mask, read_predicate(warp, i.r[1], i.a));
}

// Clocks count this block's warp instructions, so they move on and never stand still.
template <class T>
void move_clock(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint64_t now = ++warp.block->clock;
  const T value = T(i.a ? now >> 32 : now);
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int) { return value; });
}

// r[0] = {r[1], ...}, the first part lowest
template <class Whole, class Part>
void pack(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int parts = sizeof(Whole) / sizeof(Part);
  const Part* from[parts];
  for (int n = 0; n < parts; ++n) from[n] = warp.reg<Part>(i.r[1 + n]);
  for_lanes(warp.reg<Whole>(i.r[0]), mask, [&](int lane) {
    Whole result = 0;
    for (int n = 0; n < parts; ++n) result |= Whole(Whole(from[n][lane]) << (n * 8 * int(sizeof(Part))));
    return result;
  });
}

// {r[0], ...} = r[last]
template <class Whole, class Part>
void unpack(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr int parts = sizeof(Whole) / sizeof(Part);
  Whole from[kLanes];
  std::memcpy(from, warp.reg<Whole>(i.r[parts]), sizeof from);
  for (int n = 0; n < parts; ++n) {
    for_lanes(warp.reg<Part>(i.r[n]), mask,
              [&](int lane) { return Part(from[lane] >> (n * 8 * int(sizeof(Part)))); });
  }
}

Type part_type(Decoder& d, Type whole, size_t parts) {
  const int width = width_of(whole) / int(parts);
  if (parts * size_t(width) != size_t(width_of(whole)) || (width != 2 && width != 4))
    d.not_built("a vector of these parts");
  return width == 2 ? Type::B16 : Type::B32;
}

void mov(Decoder& d) {
  const Type type = d.want_type({Type::Pred, Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64,
                                 Type::S16, Type::S32, Type::S64, Type::F32, Type::F64});
  if (d.peek().kind == OperandKind::Vector) {
    const size_t parts = d.peek().parts.size();
    const Type part = part_type(d, type, parts);
    d.out_vector(part, int(parts), true);
    d.in(type);
    d.ins.definedness = Definedness::Moves;
    return d.done(part == Type::B32     ? unpack<uint64_t, uint32_t>
                  : width_of(type) == 8 ? unpack<uint64_t, uint16_t>
                                        : unpack<uint32_t, uint16_t>);
  }
  d.out(type);
  if (type == Type::Pred) {
    bool negated = false;
    d.in_predicate(&negated);
    d.ins.a = negated;
    d.ins.definedness = Definedness::Moves;
    return d.done(move_predicate);
  }
  const Operand& source = d.peek();
  if (source.kind == OperandKind::Vector) {
    const size_t parts = source.parts.size();
    const Type part = part_type(d, type, parts);
    d.in_vector(part, int(parts));
    d.ins.definedness = Definedness::Packs;
    d.ins.count = uint8_t(parts);
    return d.done(part == Type::B32     ? pack<uint64_t, uint32_t>
                  : width_of(type) == 8 ? pack<uint64_t, uint16_t>
                                        : pack<uint32_t, uint16_t>);
  }
  const int special =
      source.kind == OperandKind::Register ? d.function.code->registers[size_t(source.reg)].special : -1;
  if (special >= int(Special::Clock)) {
    const bool wide = special == int(Special::Clock64) || special == int(Special::Globaltimer);
    if (width_of(type) != (wide ? 8 : 4)) d.refuse("a special register of another width");
    d.ins.a = special == int(Special::ClockHi) || special == int(Special::GlobaltimerHi);
    d.next();
    return d.done(wide ? move_clock<uint64_t> : move_clock<uint32_t>);
  }
  d.in(type);
  d.ins.definedness = Definedness::Moves;
  d.done(by_bits_type<Move>(type));
}
}  // namespace

void add_move_opcodes(Opcodes& table) { table["mov"] = mov; }
}  // namespace soft
