// cp.async and the matrix loads: instructions that move shared memory by other rules than ld and st.
// PTX manual 9.7.9.25 (cp.async) and 9.7.14.5 (ldmatrix, stmatrix).
#include "exec.hpp"
#include "exec_memory.hpp"

namespace soft {
namespace {
// r: destination, source, then what b says: 1 a source size, 2 an ignore-source predicate. target: the destination's
// offset, a its base's width; immediate and d: the source's; width: bytes.
void async_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint64_t to[kLanes], from[kLanes];
  uint32_t bytes[kLanes];
  addresses(warp, i.r[0], i.a, i.target, to);
  addresses(warp, i.r[1], i.d, i.immediate, from);
  const uint32_t* source_bytes = nullptr;
  if (i.b) {
    const uint32_t* size = i.b == 1 ? warp.reg<uint32_t>(i.r[2]) : nullptr;
    const uint32_t ignored = i.b == 2 ? read_predicate(warp, i.r[2], i.c) : 0;
    for (int lane = 0; lane < kLanes; ++lane) bytes[lane] = size ? size[lane] : (ignored >> lane & 1) ? 0 : i.width;
    source_bytes = bytes;
    each_lane(mask, [&](int lane) {
      if (bytes[lane] > i.width) {
        fault(719, "async-source-size",
              "a source of " + std::to_string(bytes[lane]) + " bytes for a copy of " + std::to_string(i.width),
              warp.site, lane);
      }
    });
  }
  const Request request{*warp.block->memory, warp.site,   warp.index, mask, to, i.width,
                        Space::Shared,       Order::Weak, Scope::Cta, false};
  async_copy(request, from, source_bytes);
}

void commit_run(Warp& warp, const Instruction&, uint32_t mask) {
  async_commit(*warp.block->memory, warp.site, warp.index, mask);
}
void wait_run(Warp& warp, const Instruction& i, uint32_t mask) {
  async_wait(*warp.block->memory, warp.site, warp.index, mask, uint32_t(i.immediate));
}

void cp(Decoder& d) {
  d.need(70, 80);
  if (!d.take("async")) d.not_built("cp." + std::string(d.modifier()));
  if (d.take("commit_group")) return d.done(commit_run);
  if (d.take("wait_all")) {
    d.ins.immediate = 0xffffffff;
    return d.done(wait_run);
  }
  if (d.take("wait_group")) {
    d.ins.immediate = d.integer();
    if (d.ins.immediate < 0) d.refuse("a negative number of groups");
    return d.done(wait_run);
  }
  const bool global_level = d.want_one_of({"ca", "cg"}) == 1;
  if (take_space(d) != Space::Shared || take_space(d) != Space::Global)
    d.not_built("a copy that is not from global to shared memory");
  const bool policy = take_cache_hints(d, Space::Global);
  d.address();
  d.ins.a = d.ins.d;
  d.ins.target = int32_t(d.ins.immediate);
  d.address();
  const int64_t bytes = d.integer();
  if (bytes != 16 && (global_level || (bytes != 4 && bytes != 8)))
    d.refuse("a copy of " + std::to_string(bytes) + " bytes");
  d.ins.width = uint8_t(bytes);
  if (d.left() > (policy ? 1u : 0u)) {
    const Operand& operand = d.peek();
    const bool predicate =
        operand.kind == OperandKind::Register && d.function.code->registers[size_t(operand.reg)].type == Type::Pred;
    if (predicate) {
      bool negated = false;
      d.in_predicate(&negated);
      d.ins.b = 2;
      d.ins.c = negated;
    } else {
      d.in(Type::U32);
      d.ins.b = 1;
    }
  }
  skip_policy(d, policy);
  d.done(async_run);
}

// r: count registers, then the address (ldmatrix); the address, then the registers (stmatrix). b: transposed.
Request matrix_request(Warp& warp, const Instruction& i, const uint64_t* address) {
  return Request{*warp.block->memory, warp.site,   warp.index, kFullMask, address, 16,
                 Space(i.a),          Order::Weak, Scope::Cta, false};
}

void load_matrix_run(Warp& warp, const Instruction& i, uint32_t mask) {
  require_aligned(warp, mask, true);
  uint64_t address[kLanes];
  uint32_t out[4 * kLanes];
  addresses(warp, i.r[i.count], i.d, i.immediate, address);
  load_matrix(matrix_request(warp, i, address), i.count, i.b, out);
  for (int n = 0; n < i.count; ++n)
    std::memcpy(warp.reg<uint32_t>(i.r[n]), out + n * kLanes, sizeof(uint32_t) * kLanes);
}

void store_matrix_run(Warp& warp, const Instruction& i, uint32_t mask) {
  require_aligned(warp, mask, true);
  uint64_t address[kLanes];
  uint32_t from[4 * kLanes];
  addresses(warp, i.r[0], i.d, i.immediate, address);
  for (int n = 0; n < i.count; ++n)
    std::memcpy(from + n * kLanes, warp.reg<uint32_t>(i.r[1 + n]), sizeof(uint32_t) * kLanes);
  store_matrix(matrix_request(warp, i, address), i.count, i.b, from);
}

void matrix(Decoder& d) {
  const bool is_load = d.opcode() == "ldmatrix";
  is_load ? d.need(65, 75) : d.need(78, 90);
  d.want_one_of({"sync"});
  d.want_one_of({"aligned"});
  d.want_one_of({"m8n8"});
  constexpr uint8_t kCounts[] = {1, 2, 4};
  d.ins.count = kCounts[d.want_one_of({"x1", "x2", "x4"})];
  d.ins.b = d.take("trans");
  const Space space = take_space(d);
  if (space != Space::Shared && space != Space::Generic) d.refuse("matrices lie in shared memory");
  d.ins.a = uint8_t(space);
  d.want_type({Type::B16});
  if (is_load) {
    d.out_vector(Type::B32, d.ins.count, false);
    d.address();
    return d.done(load_matrix_run);
  }
  d.address();
  d.in_vector(Type::B32, d.ins.count);
  d.done(store_matrix_run);
}
}  // namespace

void add_async_opcodes(Opcodes& table) {
  table["cp"] = cp;
  table["ldmatrix"] = table["stmatrix"] = matrix;
}
}  // namespace soft
