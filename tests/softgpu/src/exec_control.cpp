// Branches, exits and traps, and the divergence stack they work on. PTX manual 9.7.12.
#include <algorithm>

#include "block.hpp"
#include "exec.hpp"

namespace soft {
// Paths are popped where they reconverge; an empty one is too.
void Warp::settle() {
  while (mask == 0 || pc == reconverge) {
    if (waiting.empty()) {
      if (mask == 0) state = WarpState::Done;
      return;
    }
    const Path& below = waiting.back();
    pc = below.pc;
    reconverge = below.reconverge;
    mask = below.mask;
    waiting.pop_back();
  }
}

// The lanes of this path go several ways and meet again at `meet`, where the path waits with all of them, unless that
// is where it ends anyway. Which side runs first is the scheduler's choice.
void Warp::diverge(const Path* sides, int count, int32_t meet) {
  if (meet == kNever) meet = reconverge;
  if (count > 1 && meet != reconverge) waiting.push_back({meet, reconverge, mask});
  int first = 0;
  if (count > 1) {
    block->random = mix(block->random);
    first = int(block->random % uint64_t(count));
  }
  for (int n = 0; n < count; ++n) {
    if (n != first && sides[n].pc != meet) waiting.push_back({sides[n].pc, meet, sides[n].mask});
  }
  if (count > 1) {
    reconverge = meet;
    mask = sides[first].mask;
  }
  const int32_t from = pc - 1;
  pc = sides[first].pc;
  for (int n = 0; n < count; ++n) backward |= sides[n].pc <= from;
}

void Warp::exit(uint32_t lanes) {
  live &= ~lanes;
  mask &= ~lanes;
  for (Path& path : waiting) path.mask &= ~lanes;
  if (mask == 0) settle();
}

namespace {
void bra_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const Path sides[2] = {{i.target, 0, mask}, {warp.pc, 0, warp.mask & ~mask}};
  warp.diverge(sides, mask == warp.mask ? 1 : 2, i.reconverge);
}

// bra.uni promises that all active lanes agree.
void uniform_bra_run(Warp& warp, const Instruction& i, uint32_t mask) {
  if (mask != warp.mask)
    fault(719, "uniform-branch", "lanes " + hex(warp.mask & ~mask) + " do not follow a branch that is .uni",
          warp.site, std::countr_zero(mask));
  bra_run(warp, i, mask);
}

void bra(Decoder& d) {
  d.ins.a = d.take("uni");
  const Operand& target = d.next();
  if (target.kind != OperandKind::Symbol) d.refuse("expected a label");
  d.ins.flow = Flow::Branch;
  d.done(d.ins.a ? uniform_bra_run : bra_run);
}

void brx_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const auto& table = warp.block->grid->code.branch_tables[size_t(i.immediate)];
  const uint32_t* index = warp.reg<uint32_t>(i.r[0]);
  Path sides[kLanes + 1];
  int count = 0;
  if (mask != warp.mask) sides[count++] = {warp.pc, 0, warp.mask & ~mask};
  each_lane(mask, [&](int lane) {
    if (index[lane] >= table.size()) {
      fault(719, "branch-index",
            "index " + std::to_string(index[lane]) + " of " + std::to_string(table.size()) + " targets", warp.site,
            lane);
    }
    const int32_t target = table[index[lane]];
    int side = 0;
    while (side < count && sides[side].pc != target) ++side;
    if (side == count) sides[count++] = {target, 0, 0};
    sides[side].mask |= 1u << lane;
  });
  if (i.a && count > 1)
    fault(719, "uniform-branch", "lanes take several targets of a branch that is .uni", warp.site,
          std::countr_zero(mask));
  warp.diverge(sides, count, i.reconverge);
}

void brx(Decoder& d) {
  d.need(60, 30);
  d.want_one_of({"idx"});
  d.ins.a = d.take("uni");
  d.in(Type::U32);
  if (d.next().kind != OperandKind::Symbol) d.refuse("expected a list of branch targets");
  d.ins.flow = Flow::Table;
  d.done(brx_run);
}

void exit_run(Warp& warp, const Instruction&, uint32_t mask) { warp.exit(mask); }

void leave(Decoder& d) {
  if (d.opcode() == "ret") d.take("uni");
  d.ins.flow = Flow::Exit;
  d.done(exit_run);
}

void trap_run(Warp& warp, const Instruction&, uint32_t mask) {
  fault(719, "trap", "the kernel stopped itself", warp.site, std::countr_zero(mask));
}

void trap(Decoder& d) {
  if (d.opcode() == "trap") d.ins.flow = Flow::Exit;
  d.done(trap_run);
}
}  // namespace

void report_undefined(Warp& warp, uint32_t lanes) {
  if (!lanes) return;
  finding("uninitialised-register", "a register is read that this lane has not written", warp.site,
          std::countr_zero(lanes));
}

// Sources of this instruction that hold nothing in some lane; a move passes the doubt on to its destination.
void run_tracked(Warp& warp, const Instruction& i, uint32_t mask) {
  const Code& code = warp.block->grid->code;
  const Tracked* tracked = &code.tracked[i.first_tracked];
  uint32_t undefined[kMaxOperands] = {};
  for (uint32_t n = 0; n < i.tracked; ++n) {
    if (tracked[n].write) continue;
    const uint32_t lanes = mask & ~warp.predicate(tracked[n].defined);
    undefined[tracked[n].place] = lanes;
    if (i.definedness == Definedness::Uses) report_undefined(warp, lanes);
  }
  uint32_t doubt = 0;
  if (i.definedness == Definedness::Moves) doubt = undefined[std::countr_zero(i.reads | 1u << (kMaxOperands - 1))];
  if (i.definedness == Definedness::Packs) {
    doubt = kFullMask;
    for (int n = 1; n <= i.count; ++n) doubt &= undefined[n];
  }
  if (i.definedness == Definedness::Selects) {
    const uint32_t p = warp.predicate(i.r[3]);
    doubt = (undefined[1] & p) | (undefined[2] & ~p) | undefined[3];
  }
  i.inner(warp, i, mask);
  for (uint32_t n = 0; n < i.tracked; ++n) {
    if (tracked[n].write) write_predicate(warp, tracked[n].defined, mask, ~doubt);
  }
}

void add_control_opcodes(Opcodes& table) {
  table["bra"] = bra;
  table["brx"] = brx;
  table["exit"] = table["ret"] = leave;
  table["trap"] = table["brkpt"] = trap;
}
}  // namespace soft
