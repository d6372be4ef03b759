// Barriers and fences. PTX manual 9.7.13. A warp that has to wait stops here; block.cpp lets the others run.
#include <algorithm>

#include "block.hpp"
#include "exec.hpp"
#include "exec_memory.hpp"

namespace soft {
namespace {
// --- bar and barrier. r: [d,] barrier, [count,] [predicate]. a: BarrierKind, b: 1 a count is given, c: aligned,
// d: the predicate is negated, count: the reduction
enum BarrierKind : uint8_t { kSync, kArrive, kRed };
enum Reduction : uint8_t { kPopc, kAnd, kOr };

void barrier_run(Warp& warp, const Instruction& i, uint32_t mask) {
  if (i.c) require_aligned(warp, mask, false);
  if (mask != warp.live) unsupported("barrier.sync in diverged code: " + describe(warp.site, std::countr_zero(mask)));
  const int first = i.a == kRed ? 1 : 0;
  const int lane = std::countr_zero(mask);
  const uint32_t* ids = warp.reg<uint32_t>(i.r[first]);
  const uint32_t* counts = i.b ? warp.reg<uint32_t>(i.r[first + 1]) : nullptr;
  each_lane(mask, [&](int other) {
    if (ids[other] != ids[lane] || (counts && counts[other] != counts[lane])) {
      fault(719, "barrier-operands", "lanes of one warp name different barriers or thread counts", warp.site, other);
    }
  });
  if (ids[lane] > 15)
    fault(719, "barrier-operands", "there is no barrier " + std::to_string(ids[lane]), warp.site, lane);
  if (counts && (counts[lane] % kLanes != 0 || counts[lane] == 0)) {
    fault(719, "barrier-count",
          "a thread count of " + std::to_string(counts[lane]) + " is no multiple of the warp's 32", warp.site, lane);
  }
  uint32_t votes = 0;
  if (i.a == kRed) votes = read_predicate(warp, i.r[first + 1 + i.b], i.d) & mask;
  arrive(*warp.block, warp, ids[lane], counts ? counts[lane] : 0, mask, i.a != kArrive, i.a == kRed, votes);
}

void bar(Decoder& d) {
  const bool old_name = d.opcode() == "bar";
  if (!old_name) d.need(60, 30);
  if (old_name && d.take("warp")) {
    d.need(60, 30);
    d.want_one_of({"sync"});
    d.in(Type::B32);
    return d.done([](Warp& warp, const Instruction& i, uint32_t mask) {
      const uint32_t* members = warp.reg<uint32_t>(i.r[0]);
      check_members(warp, mask, members);
      for (uint32_t left = mask; left;) {
        const uint32_t group = (members[std::countr_zero(left)] & left) | (left & (0 - left));
        warp_sync(*warp.block->memory, warp.index, group);
        left &= ~group;
      }
    });
  }
  if (d.take("cta")) d.need(78, 30);
  if (d.modifier() == "cluster") d.not_built("clusters");
  d.ins.a = uint8_t(d.want_one_of({"sync", "arrive", "red"}));
  if (d.ins.a == kRed) d.ins.count = uint8_t(d.want_one_of({"popc", "and", "or"}));
  d.ins.c = old_name || d.take("aligned");
  if (d.ins.a == kRed) {
    const Type type = d.want_type({d.ins.count == kPopc ? Type::U32 : Type::Pred});
    d.out(type);
  }
  const auto constant = [&d] { return d.peek().kind == OperandKind::Integer ? d.peek().integer : 0; };
  if (constant() < 0 || constant() > 15) d.refuse("barriers are numbered 0 to 15");
  d.in(Type::U32);
  const size_t after = d.ins.a == kRed ? 1 : 0;
  if (d.left() > after) {
    if (constant() % kLanes != 0) d.refuse("the thread count is no multiple of the warp size");
    d.in(Type::U32);
    d.ins.b = 1;
  }
  if (d.ins.a == kArrive && !d.ins.b) d.refuse("bar.arrive needs a thread count");
  if (d.ins.a == kRed) {
    bool negated = false;
    d.in_predicate(&negated);
    d.ins.d = negated;
  }
  d.done(barrier_run);
}

void fence_run(Warp& warp, const Instruction& i, uint32_t mask) {
  fence(*warp.block->memory, warp.site, warp.index, mask, Scope(i.c));
}

void membar(Decoder& d) {
  if (d.modifier() == "proxy") d.not_built("proxy fences");
  constexpr Scope kScopes[] = {Scope::Cta, Scope::Gpu, Scope::Sys};
  d.ins.c = uint8_t(kScopes[d.want_one_of({"cta", "gl", "sys"})]);
  d.done(fence_run);
}

void fence_decode(Decoder& d) {
  d.need(60, 70);
  if (d.modifier() == "proxy" || d.modifier() == "mbarrier_init") d.not_built("this fence");
  const int sem = d.take_one_of({"sc", "acq_rel", "acquire", "release"});
  if (sem >= 2) d.need(86, 90);
  d.ins.c = uint8_t(want_scope(d));
  d.done(fence_run);
}

// A sleeping warp gives the others their turn.
void nanosleep_run(Warp& warp, const Instruction&, uint32_t) { warp.yielded = true; }

void nanosleep(Decoder& d) {
  d.need(63, 70);
  d.want_type({Type::U32});
  d.in(Type::U32);
  d.done(nanosleep_run);
}

void griddepcontrol(Decoder& d) {
  d.need(78, 90);
  d.want_one_of({"launch_dependents", "wait"});
  d.done([](Warp&, const Instruction&, uint32_t) {});  // grids of one stream follow one another here
}
}  // namespace

void finish_reduction(Warp& warp, const Instruction& i, uint32_t mask, uint32_t true_count, uint32_t threads) {
  if (i.a != kRed) return;
  if (i.count == kPopc) {
    for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int) { return true_count; });
  } else {
    const bool result = i.count == kAnd ? true_count == threads : true_count != 0;
    write_predicate(warp, i.r[0], mask, result ? ~0u : 0);
  }
}

void add_barrier_opcodes(Opcodes& table) {
  table["bar"] = table["barrier"] = bar;
  table["membar"] = membar;
  table["fence"] = fence_decode;
  table["nanosleep"] = nanosleep;
  table["griddepcontrol"] = griddepcontrol;
}
}  // namespace soft
