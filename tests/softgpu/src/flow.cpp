// Control flow of one kernel: branch targets, where diverged lanes meet again, which reads may find nothing written,
// and which registers may share a slot. All by lane: a lane follows its own path, so the textbook analyses hold.
#include <algorithm>
#include <functional>

#include "decode.hpp"

namespace soft {
namespace {
using Bits = std::vector<uint64_t>;
bool has(const Bits& bits, int32_t i) { return bits[size_t(i) / 64] >> (i % 64) & 1; }
void put(Bits& bits, int32_t i) { bits[size_t(i) / 64] |= 1ull << (i % 64); }
void drop(Bits& bits, int32_t i) { bits[size_t(i) / 64] &= ~(1ull << (i % 64)); }

struct BasicBlock {
  int32_t begin = 0, end = 0;  // instructions
  std::vector<int> next, previous;
  int post_dominator = -1;
  Bits live_in, live_out, defined_out;
};

class FlowGraph {
 public:
  explicit FlowGraph(Function& function) : function_(function), code_(*function.code) {}
  void resolve();

 private:
  int32_t label(const std::string& name, const Statement& at) const;
  void resolve_targets();
  void build();
  void find_post_dominators();
  void find_liveness();
  void find_undefined();
  void advance_defined(const Instruction& instruction, Bits& defined, bool record);
  void allocate();
  void track();

  Function& function_;
  Code& code_;
  std::vector<BasicBlock> blocks_;
  std::vector<int> block_of_;
  size_t words_ = 0;
};

int32_t FlowGraph::label(const std::string& name, const Statement& at) const {
  for (int scope = at.scope; scope >= 0; scope = function_.scope_parents[size_t(scope)]) {
    for (const Label& each : function_.labels) {
      if (each.scope != scope || each.name != name) continue;
      if (each.statement == code_.instructions.size())
        refuse(at.line->line, "no instruction follows label " + name + ": " + at.line->text);
      return int32_t(each.statement);
    }
  }
  refuse(at.line->line, "no label " + name + ": " + at.line->text);
}

void FlowGraph::resolve_targets() {
  for (size_t i = 0; i < code_.instructions.size(); ++i) {
    Instruction& instruction = code_.instructions[i];
    const Statement& statement = function_.statements[i];
    if (instruction.flow == Flow::Branch) instruction.target = label(statement.operands[0].name, statement);
    if (instruction.flow != Flow::Table) continue;
    const auto targets = function_.branch_targets.find(statement.operands[1].name);
    if (targets == function_.branch_targets.end()) {
      refuse(statement.line->line, "no .branchtargets " + statement.operands[1].name);
    }
    instruction.immediate = int64_t(code_.branch_tables.size());
    auto& table = code_.branch_tables.emplace_back();
    for (const std::string& each : targets->second) table.push_back(label(each, statement));
  }
}

void FlowGraph::build() {
  const auto& code = code_.instructions;
  const int32_t size = int32_t(code.size());
  std::vector<char> leader(size_t(size) + 1, 0);
  leader[0] = 1;
  const auto mark = [&](int32_t pc) { leader[size_t(pc)] = 1; };
  for (const Instruction& each : code) {
    if (each.flow == Flow::Next) continue;
    mark(int32_t(each.index) + 1);
    if (each.flow == Flow::Branch) mark(each.target);
    if (each.flow == Flow::Table) {
      for (const int32_t pc : code_.branch_tables[size_t(each.immediate)]) mark(pc);
    }
  }
  block_of_.assign(size_t(size) + 1, -1);
  for (int32_t pc = 0; pc < size; ++pc) {
    if (leader[size_t(pc)]) blocks_.emplace_back().begin = pc;
    block_of_[size_t(pc)] = int(blocks_.size()) - 1;
    blocks_.back().end = pc + 1;
  }
  blocks_.emplace_back();  // the exit: where every lane ends
  blocks_.back().begin = blocks_.back().end = size;
  const int exit = int(blocks_.size()) - 1;
  block_of_[size_t(size)] = exit;
  for (int b = 0; b < exit; ++b) {
    const Instruction& last = code[size_t(blocks_[size_t(b)].end) - 1];
    const auto connect = [&](int32_t pc) {
      const int to = pc < 0 ? exit : block_of_[size_t(pc)];
      auto& next = blocks_[size_t(b)].next;
      if (std::find(next.begin(), next.end(), to) == next.end()) next.push_back(to);
    };
    const bool falls = last.flow == Flow::Next || last.guard != kNoRegister;
    if (last.flow == Flow::Branch) connect(last.target);
    if (last.flow == Flow::Table) {
      for (const int32_t pc : code_.branch_tables[size_t(last.immediate)]) connect(pc);
    }
    if (last.flow == Flow::Exit) connect(-1);
    if (falls) connect(blocks_[size_t(b)].end);
  }
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (const int to : blocks_[b].next) blocks_[size_t(to)].previous.push_back(int(b));
  }
  const Instruction& last = code.back();
  if (last.flow == Flow::Next || last.guard != kNoRegister)
    refuse(last.line->line, "control runs past the end of " + code_.name);
}

// Cooper, Harvey and Kennedy's dominators, on the reversed graph.
void FlowGraph::find_post_dominators() {
  const int exit = int(blocks_.size()) - 1;
  std::vector<int> order, number(blocks_.size(), -1);
  std::vector<std::pair<int, size_t>> stack{{exit, 0}};
  std::vector<char> seen(blocks_.size(), 0);
  seen[size_t(exit)] = 1;
  while (!stack.empty()) {
    auto& [block, edge] = stack.back();
    const auto& previous = blocks_[size_t(block)].previous;
    if (edge < previous.size()) {
      const int to = previous[edge++];
      if (!seen[size_t(to)]) {
        seen[size_t(to)] = 1;
        stack.push_back({to, 0});
      }
    } else {
      number[size_t(block)] = int(order.size());
      order.push_back(block);
      stack.pop_back();
    }
  }
  blocks_[size_t(exit)].post_dominator = exit;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = order.size() - 1; i-- > 0;) {
      BasicBlock& block = blocks_[size_t(order[i])];
      int meet = -1;
      for (int to : block.next) {
        if (blocks_[size_t(to)].post_dominator < 0) continue;
        if (meet < 0) meet = to;
        while (meet != to) {
          while (number[size_t(meet)] < number[size_t(to)]) meet = blocks_[size_t(meet)].post_dominator;
          while (number[size_t(to)] < number[size_t(meet)]) to = blocks_[size_t(to)].post_dominator;
        }
      }
      if (meet != block.post_dominator) {
        block.post_dominator = meet;
        changed = true;
      }
    }
  }
  for (Instruction& each : code_.instructions) {
    if (each.flow != Flow::Branch && each.flow != Flow::Table) continue;
    const int meet = blocks_[size_t(block_of_[each.index])].post_dominator;
    each.reconverge = meet < 0 || meet == exit ? -1 : blocks_[size_t(meet)].begin;
  }
}

template <class F>
void for_places(uint32_t places, F f) {
  for (; places; places &= places - 1) f(std::countr_zero(places));
}

void FlowGraph::find_liveness() {
  words_ = code_.registers.size() / 64 + 1;
  std::vector<Bits> uses(blocks_.size(), Bits(words_)), kills(blocks_.size(), Bits(words_));
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (int32_t pc = blocks_[b].begin; pc < blocks_[b].end; ++pc) {
      const Instruction& each = code_.instructions[size_t(pc)];
      const auto use = [&](int32_t reg) {
        if (!has(kills[b], reg)) put(uses[b], reg);
      };
      for_places(each.reads, [&](int place) { use(each.r[place]); });
      if (each.guard != kNoRegister) use(each.guard);
      if (each.guard == kNoRegister) for_places(each.writes, [&](int place) { put(kills[b], each.r[place]); });
    }
    blocks_[b].live_in.assign(words_, 0);
    blocks_[b].live_out.assign(words_, 0);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks_.size(); b-- > 0;) {
      BasicBlock& block = blocks_[b];
      for (size_t w = 0; w < words_; ++w) {
        uint64_t out = 0;
        for (const int to : block.next) out |= blocks_[size_t(to)].live_in[w];
        const uint64_t in = uses[b][w] | (out & ~kills[b][w]);
        changed |= in != block.live_in[w];
        block.live_out[w] = out;
        block.live_in[w] = in;
      }
    }
  }
}

// Steps over one instruction. A register that some path leaves unwritten is suspect once it is read; a move of such a
// register passes the doubt on: compilers emit those for values that are never used.
void FlowGraph::advance_defined(const Instruction& instruction, Bits& defined, bool record) {
  bool doubt = false;
  int doubts = 0;
  const auto read = [&](int32_t reg) {
    VirtualRegister& virtual_register = code_.registers[size_t(reg)];
    if (has(defined, reg) || virtual_register.special >= 0) return;
    doubt = true;
    ++doubts;
    if (record) virtual_register.suspect = true;
  };
  for_places(instruction.reads, [&](int place) { read(instruction.r[place]); });
  const bool passes_on = instruction.definedness == Definedness::Packs
                             ? doubts == instruction.count
                             : doubt && instruction.definedness != Definedness::Uses;
  if (instruction.guard != kNoRegister) {
    read(instruction.guard);
    if (passes_on) for_places(instruction.writes, [&](int place) { drop(defined, instruction.r[place]); });
  } else {
    for_places(instruction.writes, [&](int place) {
      if (passes_on) {
        drop(defined, instruction.r[place]);
      } else {
        put(defined, instruction.r[place]);
      }
    });
  }
}

void FlowGraph::find_undefined() {
  for (BasicBlock& block : blocks_) block.defined_out.assign(words_, ~0ull);
  const auto entering = [&](size_t b) {
    Bits in(words_, b == 0 ? 0 : ~0ull);
    if (b != 0) {
      for (const int from : blocks_[b].previous) {
        for (size_t w = 0; w < words_; ++w) in[w] &= blocks_[size_t(from)].defined_out[w];
      }
    }
    return in;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Bits now = entering(b);
      for (int32_t pc = blocks_[b].begin; pc < blocks_[b].end; ++pc) {
        advance_defined(code_.instructions[size_t(pc)], now, false);
      }
      if (now != blocks_[b].defined_out) {
        blocks_[b].defined_out = std::move(now);
        changed = true;
      }
    }
  }
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (b != 0 && blocks_[b].previous.empty()) continue;
    Bits now = entering(b);
    for (int32_t pc = blocks_[b].begin; pc < blocks_[b].end; ++pc) {
      advance_defined(code_.instructions[size_t(pc)], now, true);
    }
  }
}

// Linear scan over intervals of the text. A destination may take the slot of a source that ends there: every handler
// reads its sources before it writes.
void FlowGraph::allocate() {
  const int32_t size = int32_t(code_.instructions.size());
  const size_t count = code_.registers.size();
  std::vector<int32_t> first(count, INT32_MAX), last(count, -1);
  const auto touch = [&](int32_t reg, int32_t at) {
    first[size_t(reg)] = std::min(first[size_t(reg)], at);
    last[size_t(reg)] = std::max(last[size_t(reg)], at);
  };
  for (const Instruction& each : code_.instructions) {
    const int32_t at = 2 * int32_t(each.index);  // reads at the even point, writes at the odd one after it
    for_places(each.reads, [&](int place) { touch(each.r[place], at); });
    for_places(each.writes, [&](int place) { touch(each.r[place], at + 1); });
    if (each.guard != kNoRegister) touch(each.guard, at);
  }
  for (const BasicBlock& block : blocks_) {
    for (int32_t reg = 0; reg < int32_t(count); ++reg) {
      if (has(block.live_in, reg)) touch(reg, 2 * block.begin);
      if (has(block.live_out, reg)) touch(reg, 2 * block.end - 1);
    }
  }
  std::vector<int32_t> order;
  for (int32_t reg = 0; reg < int32_t(count); ++reg) {
    if (last[size_t(reg)] < 0) continue;
    VirtualRegister& each = code_.registers[size_t(reg)];
    if (each.suspect || each.special >= 0) {
      first[size_t(reg)] = -1;
      last[size_t(reg)] = 2 * size;
    }
    order.push_back(reg);
  }
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return std::pair(first[size_t(a)], a) < std::pair(first[size_t(b)], b); });
  struct Slot {
    int32_t offset, free_from;
  };
  std::map<int, std::vector<Slot>> slots;  // by bytes
  uint32_t bytes = 0, predicates = 0;
  const auto take = [&](int slot_bytes, int32_t from, int32_t to) {
    for (Slot& slot : slots[slot_bytes]) {
      if (slot.free_from < from) {
        slot.free_from = to;
        return slot.offset;
      }
    }
    uint32_t& end = slot_bytes == 4 ? predicates : bytes;
    const int32_t offset = int32_t(end);
    end += uint32_t(slot_bytes);
    slots[slot_bytes].push_back({offset, to});
    return offset;
  };
  for (const int32_t reg : order) {
    VirtualRegister& each = code_.registers[size_t(reg)];
    const int slot_bytes = each.type == Type::Pred ? 4 : std::max(width_of(each.type), 2) * kLanes;
    each.offset = take(slot_bytes, first[size_t(reg)], last[size_t(reg)]);
    if (each.suspect) each.defined = take(4, -1, 2 * size);
    if (each.special >= 0) code_.specials.emplace_back(Special(each.special), each.offset);
  }
  // Predicates lie behind the wide registers.
  for (VirtualRegister& each : code_.registers) {
    if (each.offset >= 0 && each.type == Type::Pred) each.offset += int32_t(bytes);
    if (each.defined >= 0) each.defined += int32_t(bytes);
  }
  code_.file_bytes = (bytes + predicates + 63) / 64 * 64;
}

void FlowGraph::track() {
  for (Instruction& each : code_.instructions) {
    each.first_tracked = uint32_t(code_.tracked.size());
    const auto add = [&](int32_t reg, uint8_t place, bool write) {
      const VirtualRegister& found = code_.registers[size_t(reg)];
      if (found.suspect) code_.tracked.push_back({found.defined, place, write});
    };
    for_places(each.reads, [&](int place) { add(each.r[place], uint8_t(place), false); });
    for_places(each.writes, [&](int place) { add(each.r[place], uint8_t(place), true); });
    each.tracked = uint32_t(code_.tracked.size()) - each.first_tracked;
    for_places(each.reads | each.writes,
               [&](int place) { each.r[place] = code_.registers[size_t(each.r[place])].offset; });
    if (each.guard != kNoRegister) {
      const VirtualRegister& guard = code_.registers[size_t(each.guard)];
      each.guard = guard.offset;
      if (guard.suspect) each.guard_defined = guard.defined;
    }
    if (each.tracked) {
      each.inner = each.handler;
      each.handler = run_tracked;
    }
  }
}

void FlowGraph::resolve() {
  if (code_.instructions.empty()) refuse(0, "kernel " + code_.name + " has no instruction");
  resolve_targets();
  build();
  find_post_dominators();
  find_liveness();
  find_undefined();
  allocate();
  track();
}
}  // namespace

void resolve_flow(Function& function) { FlowGraph(function).resolve(); }
}  // namespace soft
