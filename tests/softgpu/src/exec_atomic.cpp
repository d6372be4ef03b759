// atom and red: PTX manual 9.7.13.5.
#include "exec.hpp"
#include "exec_memory.hpp"

namespace soft {
namespace {
// a: Space, b: Order, c: Scope, count: AtomicOp, width: AtomicType; r: [d,] address, b [, c]
void atomic_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t address[kLanes];
  const bool result = i.target != 0;
  const int bytes = i.reconverge, first = result ? 1 : 0;
  addresses(warp, i.r[first], i.d, i.immediate, address);
  alignas(64) uint8_t old[kLanes * 8];
  const Request request{*warp.block->memory, warp.site,  warp.index, mask,       address,
                        uint32_t(bytes),     Space(i.a), Order(i.b), Scope(i.c), false};
  const void* b = warp.reg<uint8_t>(i.r[first + 1]);
  const void* c = AtomicOp(i.count) == AtomicOp::Cas ? warp.reg<uint8_t>(i.r[first + 2]) : nullptr;
  atomic(request, AtomicOp(i.count), AtomicType(i.width), b, c, result ? old : nullptr);
  if (!result) return;
  if (bytes == 2)
    blend(warp.reg<uint16_t>(i.r[0]), reinterpret_cast<const uint16_t*>(old), mask);
  else if (bytes == 4)
    blend(warp.reg<uint32_t>(i.r[0]), reinterpret_cast<const uint32_t*>(old), mask);
  else
    blend(warp.reg<uint64_t>(i.r[0]), reinterpret_cast<const uint64_t*>(old), mask);
}

AtomicType atomic_type(Decoder& d, AtomicOp op, Type type) {
  using A = AtomicType;
  switch (op) {
    case AtomicOp::And:
    case AtomicOp::Or:
    case AtomicOp::Xor:
    case AtomicOp::Exch:
      if (type == Type::B32) return A::B32;
      if (type == Type::B64) return A::B64;
      break;
    case AtomicOp::Cas:
      if (type == Type::B32) return A::B32;
      if (type == Type::B64) return A::B64;
      if (type == Type::B16) d.not_built("a 16-bit cas");
      break;
    case AtomicOp::Inc:
    case AtomicOp::Dec:
      if (type == Type::U32) return A::U32;
      break;
    case AtomicOp::Min:
    case AtomicOp::Max:
    case AtomicOp::Add:
      if (type == Type::U32) return A::U32;
      if (type == Type::S32) return A::S32;
      if (type == Type::U64) return A::U64;
      if (type == Type::S64 && op != AtomicOp::Add) return A::S64;
      if (op != AtomicOp::Add) break;
      if (type == Type::F32) return A::F32;
      if (type == Type::F64) return A::F64;
      if (type == Type::F16) return A::F16;
      if (type == Type::F16x2) return A::F16x2;
      if (type == Type::BF16) return A::BF16;
      if (type == Type::BF16x2) return A::BF16x2;
      break;
  }
  d.refuse("type ." + std::string(name_of(type)) + " of this atomic");
}

void atom(Decoder& d) {
  const bool result = d.opcode() == "atom";
  Order order = Order::Relaxed;
  Scope scope = Scope::Gpu;
  const int sem = result ? d.take_one_of({"relaxed", "acquire", "release", "acq_rel"})
                         : d.take_one_of({"relaxed", "/", "release"});
  if (sem >= 0) {
    d.need(60, 70);
    constexpr Order kOrders[] = {Order::Relaxed, Order::Acquire, Order::Release, Order::AcqRel};
    order = kOrders[sem];
  }
  const auto take_scope = [&] {
    const bool named = d.modifier() == "cta" || d.modifier() == "gpu" || d.modifier() == "sys";
    if (named) scope = want_scope(d);
    return named;
  };
  const bool scoped = take_scope();
  const Space space = take_space(d);
  if (!scoped && sem < 0) take_scope();  // as compilers write it: atom.global.cta.add
  if (space == Space::Local || space == Space::Const || space == Space::Param)
    d.refuse("an atomic in this state space");
  const int named = result ? d.want_one_of({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"})
                           : d.want_one_of({"add", "min", "max", "and", "or", "xor", "/", "/", "inc", "dec"});
  const AtomicOp op = AtomicOp(named);
  const bool noftz = d.take("noftz");
  const bool policy = d.take("L2::cache_hint");
  if (policy) d.need(74, 80);
  const Type type = d.take_type();
  const bool halves = type == Type::F16 || type == Type::F16x2 || type == Type::BF16 || type == Type::BF16x2;
  if (noftz != halves) d.refuse("half atomics, and they alone, are .noftz");
  if (halves)
    type == Type::BF16 || type == Type::BF16x2 ? d.need(78, 90)
                                               : d.need(type == Type::F16 ? 63 : 62, type == Type::F16 ? 70 : 60);
  d.ins.width = uint8_t(atomic_type(d, op, type));
  d.ins.a = uint8_t(space);
  d.ins.b = uint8_t(order);
  d.ins.c = uint8_t(scope);
  d.ins.count = uint8_t(op);
  d.ins.target = result;
  d.ins.reconverge = width_of(type);
  if (result) d.out(type);
  address_in(d, Space(d.ins.a));
  d.in(type);
  if (op == AtomicOp::Cas) d.in(type);
  skip_policy(d, policy);
  d.done(atomic_run);
}
}  // namespace

void add_atomic_opcodes(Opcodes& table) { table["atom"] = table["red"] = atom; }
}  // namespace soft
