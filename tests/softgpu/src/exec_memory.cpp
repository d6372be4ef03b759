// Loads, stores and hints to the caches: memory.hpp does what comes after the addresses. PTX manual 9.7.9.
#include <algorithm>

#include "exec.hpp"
#include "exec_memory.hpp"

namespace soft {
namespace {
constexpr int kMaxBytes = 16;
// Of loads and stores: a is the Space, b the Order, c the Scope, d the base register's width, width the element's
// bytes, count the elements; immediate the offset; target the register's width; reconverge 1 for .nc or a signed
// element.
enum Flags : int32_t { kReadOnly = 1, kSignExtend = 2 };

// The address is the register after the elements of a load and the first of a store.
Request request_of(Warp& warp, const Instruction& i, uint32_t mask, const uint64_t* address) {
  return Request{*warp.block->memory,         warp.site,  warp.index, mask,       address,
                 uint32_t(i.width) * i.count, Space(i.a), Order(i.b), Scope(i.c), (i.reconverge & kReadOnly) != 0};
}

template <class Register, class Element>
void scatter(Register* to, const uint8_t* from, int stride, uint32_t mask) {
  for_lanes(to, mask, [&](int lane) {
    Element value;
    std::memcpy(&value, from + lane * stride, sizeof value);
    return Register(value);
  });
}

void put_elements(Warp& warp, const Instruction& i, uint32_t mask, const uint8_t* data) {
  const int stride = i.width * i.count;
  const bool sign = i.reconverge & kSignExtend;
  for (int n = 0; n < i.count; ++n) {
    const uint8_t* from = data + n * i.width;
    const int32_t to = i.r[n];
    switch (i.width * 16 + i.target) {
      case 0x12:
        sign ? scatter<int16_t, int8_t>(warp.reg<int16_t>(to), from, stride, mask)
             : scatter<uint16_t, uint8_t>(warp.reg<uint16_t>(to), from, stride, mask);
        break;
      case 0x14:
        sign ? scatter<int32_t, int8_t>(warp.reg<int32_t>(to), from, stride, mask)
             : scatter<uint32_t, uint8_t>(warp.reg<uint32_t>(to), from, stride, mask);
        break;
      case 0x18:
        sign ? scatter<int64_t, int8_t>(warp.reg<int64_t>(to), from, stride, mask)
             : scatter<uint64_t, uint8_t>(warp.reg<uint64_t>(to), from, stride, mask);
        break;
      case 0x22: scatter<uint16_t, uint16_t>(warp.reg<uint16_t>(to), from, stride, mask); break;
      case 0x24:
        sign ? scatter<int32_t, int16_t>(warp.reg<int32_t>(to), from, stride, mask)
             : scatter<uint32_t, uint16_t>(warp.reg<uint32_t>(to), from, stride, mask);
        break;
      case 0x28:
        sign ? scatter<int64_t, int16_t>(warp.reg<int64_t>(to), from, stride, mask)
             : scatter<uint64_t, uint16_t>(warp.reg<uint64_t>(to), from, stride, mask);
        break;
      case 0x44: scatter<uint32_t, uint32_t>(warp.reg<uint32_t>(to), from, stride, mask); break;
      case 0x48:
        sign ? scatter<int64_t, int32_t>(warp.reg<int64_t>(to), from, stride, mask)
             : scatter<uint64_t, uint32_t>(warp.reg<uint64_t>(to), from, stride, mask);
        break;
      default: scatter<uint64_t, uint64_t>(warp.reg<uint64_t>(to), from, stride, mask); break;
    }
  }
}

void load_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t address[kLanes];
  alignas(64) uint8_t data[kLanes * kMaxBytes];
  addresses(warp, i.r[i.count], i.d, i.immediate, address);
  load(request_of(warp, i, mask, address), data);
  put_elements(warp, i, mask, data);
}

void load_param(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t address[kLanes];
  alignas(64) uint8_t data[kLanes * kMaxBytes] = {};
  const std::vector<uint8_t>& parameters = warp.block->grid->launch.parameters;
  const uint64_t bytes = uint64_t(i.width) * i.count;
  addresses(warp, i.r[i.count], i.d, i.immediate, address);
  each_lane(mask, [&](int lane) {
    if (address[lane] > parameters.size() || bytes > parameters.size() - address[lane]) {
      fault(700, "out-of-bounds",
            "parameter bytes " + std::to_string(address[lane]) + "..+" + std::to_string(bytes) + " of " +
                std::to_string(parameters.size()),
            warp.site, lane);
    }
    if (address[lane] % bytes)
      fault(716, "misaligned", "a parameter at offset " + std::to_string(address[lane]), warp.site, lane);
    std::memcpy(data + uint64_t(lane) * bytes, &parameters[address[lane]], bytes);
  });
  put_elements(warp, i, mask, data);
}

template <class Element, class Register>
void gather(uint8_t* to, const Register* from, int stride) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const Element value = Element(from[lane]);
    std::memcpy(to + lane * stride, &value, sizeof value);
  }
}

void store_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t address[kLanes];
  alignas(64) uint8_t data[kLanes * kMaxBytes];
  addresses(warp, i.r[0], i.d, i.immediate, address);
  const int stride = i.width * i.count;
  for (int n = 0; n < i.count; ++n) {
    uint8_t* to = data + n * i.width;
    const int32_t from = i.r[1 + n];
    switch (i.width * 16 + i.target) {
      case 0x12: gather<uint8_t>(to, warp.reg<uint16_t>(from), stride); break;
      case 0x14: gather<uint8_t>(to, warp.reg<uint32_t>(from), stride); break;
      case 0x18: gather<uint8_t>(to, warp.reg<uint64_t>(from), stride); break;
      case 0x22: gather<uint16_t>(to, warp.reg<uint16_t>(from), stride); break;
      case 0x24: gather<uint16_t>(to, warp.reg<uint32_t>(from), stride); break;
      case 0x28: gather<uint16_t>(to, warp.reg<uint64_t>(from), stride); break;
      case 0x44: gather<uint32_t>(to, warp.reg<uint32_t>(from), stride); break;
      case 0x48: gather<uint32_t>(to, warp.reg<uint64_t>(from), stride); break;
      default: gather<uint64_t>(to, warp.reg<uint64_t>(from), stride); break;
    }
  }
  store(request_of(warp, i, mask, address), data);
}

// {.weak | .volatile | .relaxed.scope | .acquire.scope | .release.scope}
void take_order(Decoder& d, bool is_load) {
  Order order = Order::Weak;
  Scope scope = Scope::Gpu;
  if (d.take("volatile")) {
    order = Order::Volatile;
    scope = Scope::Sys;
  } else if (d.take("relaxed")) {
    order = Order::Relaxed;
  } else if (is_load && d.take("acquire")) {
    order = Order::Acquire;
  } else if (!is_load && d.take("release")) {
    order = Order::Release;
  } else if (d.take("weak")) {
    d.need(60, 70);
  }
  if (order != Order::Weak && order != Order::Volatile) {
    d.need(60, 70);
    scope = want_scope(d);
  }
  d.ins.b = uint8_t(order);
  d.ins.c = uint8_t(scope);
}

Type take_element(Decoder& d) {
  if (d.take("v2"))
    d.ins.count = 2;
  else if (d.take("v4"))
    d.ins.count = 4;
  const Type type = d.want_type({Type::B8, Type::B16, Type::B32, Type::B64, Type::U8, Type::U16, Type::U32, Type::U64,
                                 Type::S8, Type::S16, Type::S32, Type::S64, Type::F32, Type::F64});
  d.ins.width = uint8_t(width_of(type));
  if (d.ins.width * d.ins.count > kMaxBytes) d.refuse("more than 16 bytes a lane");
  return type;
}

// The elements, all in registers of one width.
void elements(Decoder& d, Type type, bool write) {
  const Operand& operand = d.next();
  const auto add = [&](const Operand& element) {
    int width = std::max(width_of(type), 2);
    if (element.kind == OperandKind::Register && !element.negated) {
      width = std::max(width_of(d.function.code->registers[size_t(element.reg)].type), 2);
    }
    if (d.ins.target >= 0 && d.ins.target != width) {
      if (element.kind != OperandKind::Register)
        width = d.ins.target;
      else
        d.not_built("a vector of registers of several widths");
    }
    d.ins.target = width;
    d.add_wide(element, type, width, write);
  };
  if (d.ins.count == 1) {
    if (operand.kind == OperandKind::Vector) d.refuse("a vector without .v2 or .v4");
    return add(operand);
  }
  if (operand.kind != OperandKind::Vector || operand.parts.size() != d.ins.count) {
    d.refuse("expected a vector of " + std::to_string(d.ins.count));
  }
  for (const Operand& element : operand.parts) {
    if (element.kind == OperandKind::Register)
      add(element);
    else {
      // A constant or a sink takes the width of the registers beside it.
      for (const Operand& other : operand.parts) {
        if (other.kind == OperandKind::Register) {
          d.ins.target = std::max(width_of(d.function.code->registers[size_t(other.reg)].type), 2);
          break;
        }
      }
      add(element);
    }
  }
}

void ld(Decoder& d) {
  take_order(d, true);
  const Space space = take_space(d);
  d.ins.a = uint8_t(space);
  d.ins.reconverge = 0;
  const bool weak = Order(d.ins.b) == Order::Weak;
  const int cop = weak ? d.take_one_of({"ca", "cg", "cs", "lu", "cv"}) : -1;
  if (cop == 4) {  // .cv: fetched again each time, as .volatile is
    d.ins.b = uint8_t(Order::Volatile);
    d.ins.c = uint8_t(Scope::Sys);
  }
  if (d.opcode() == "ldu" || d.take("nc")) {
    if (space != Space::Global) d.refuse(".nc outside .global");
    if (!weak || cop == 4) d.refuse(".nc with an order");
    d.ins.reconverge |= kReadOnly;
  }
  if (!weak && (space == Space::Const || space == Space::Param || space == Space::Local)) {
    if (Order(d.ins.b) != Order::Volatile || space != Space::Local) d.refuse("an order in this state space");
  }
  const bool policy = take_cache_hints(d, space);
  const Type type = take_element(d);
  if (is_signed(type) && !is_float(type)) d.ins.reconverge |= kSignExtend;
  elements(d, type, true);
  address_in(d, Space(d.ins.a));
  skip_policy(d, policy);
  d.done(space == Space::Param ? load_param : load_run);
}

void st(Decoder& d) {
  take_order(d, false);
  const Space space = take_space(d);
  if (space == Space::Const || space == Space::Param) d.refuse("a store to constants or parameters");
  d.ins.a = uint8_t(space);
  d.ins.reconverge = 0;
  if (Order(d.ins.b) == Order::Weak) d.take_one_of({"wb", "cg", "cs", "wt"});
  const bool policy = take_cache_hints(d, space);
  const Type type = take_element(d);
  address_in(d, Space(d.ins.a));
  elements(d, type, false);
  skip_policy(d, policy);
  d.done(store_run);
}

// --- hints
void nothing(Warp&, const Instruction&, uint32_t) {}

void prefetch(Decoder& d) {
  if (d.opcode() == "prefetchu") {
    d.want_one_of({"L1"});
  } else {
    const Space space = take_space(d);
    if (space != Space::Generic && space != Space::Global && space != Space::Local)
      d.refuse("a prefetch in this state space");
    d.ins.a = uint8_t(space);
    const int level = d.want_one_of({"L1", "L2", "L2::evict_last", "L2::evict_normal"});
    if (level >= 2) {
      d.need(74, 80);
      if (space != Space::Global) d.refuse("an eviction priority outside .global");
    }
  }
  address_in(d, Space(d.ins.a));
  d.done(nothing);
}

void policy_run(Warp& warp, const Instruction& i, uint32_t mask) {
  for_lanes(warp.reg<uint64_t>(i.r[0]), mask, [&](int) { return uint64_t(i.immediate); });
}

void createpolicy(Decoder& d) {
  d.need(74, 80);
  const int kind = d.want_one_of({"fractional", "cvt"});
  if (kind == 0) {
    d.want_one_of({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"});
    d.take_one_of({"L2::evict_first", "L2::evict_unchanged"});
  } else {
    d.want_one_of({"L2"});
  }
  d.want_type({Type::B64});
  d.out(Type::B64);
  if (kind == 1)
    d.in(Type::B32);
  else if (d.left())
    d.in(Type::F32);
  d.ins.immediate = 0x14f0000000000000;  // opaque
  d.done(policy_run);
}
}  // namespace

void add_memory_opcodes(Opcodes& table) {
  table["ld"] = table["ldu"] = ld;
  table["st"] = st;
  table["prefetch"] = table["prefetchu"] = prefetch;
  table["createpolicy"] = createpolicy;
}
}  // namespace soft
