// mul and add that name no rounding may become one fma (PTX manual, "mul": "may be optimized aggressively"): ptxas
// does as it likes, so the seed decides here, pair by pair. It sees through a neg between them too.
#include <algorithm>

#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
enum Signs : uint8_t { kNegateProduct = 1, kNegateAddend = 2 };  // Instruction::d
enum Flags : uint8_t { kFlush = 1, kSaturate = 2 };              // Instruction::c, as both families decode it

template <class T>
void contracted_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]), *c = warp.reg<T>(i.r[3]);
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) {
    T x = a[lane], y = b[lane], z = c[lane];
    if constexpr (sizeof(T) == 4) {
      if (i.c & kFlush) x = flush(x), y = flush(y), z = flush(z);
    }
    if (i.d & kNegateProduct) x = -x;
    if (i.d & kNegateAddend) z = -z;
    if constexpr (sizeof(T) == 8) {
      return __builtin_fma(x, y, z);
    } else {
      float sum = __builtin_fmaf(x, y, z);
      if (i.c & kSaturate) sum = saturate(sum);
      return canonical(i.c & kFlush ? flush(sum) : sum);
    }
  });
}

template <class Bits, bool brain>
void contracted_half_run(Warp& warp, const Instruction& i, uint32_t mask) {
  constexpr Bits kSigns = Bits(0x80008000);
  const Bits *a = warp.reg<Bits>(i.r[1]), *b = warp.reg<Bits>(i.r[2]), *c = warp.reg<Bits>(i.r[3]);
  const Bits product = i.d & kNegateProduct ? kSigns : 0, addend = i.d & kNegateAddend ? kSigns : 0;
  for_lanes(warp.reg<Bits>(i.r[0]), mask,
            [&](int lane) { return Bits(half_fma(brain, a[lane] ^ product, b[lane], c[lane] ^ addend, i.c)); });
}

Handler contracted(const std::string& type) {
  if (type == "f32") return contracted_run<float>;
  if (type == "f64") return contracted_run<double>;
  if (type == "f16") return contracted_half_run<uint16_t, false>;
  if (type == "f16x2") return contracted_half_run<uint32_t, false>;
  if (type == "bf16") return contracted_half_run<uint16_t, true>;
  if (type == "bf16x2") return contracted_half_run<uint32_t, true>;
  return nullptr;
}

// An operation of this type that names no rounding: decoded with Instruction::b set (exec_float.cpp, exec_half.cpp).
bool is_bare(const Statement& statement, const Instruction& instruction, const char* name, const std::string& type) {
  return statement.opcode[0] == name && statement.opcode.back() == type && instruction.b;
}

bool flushes(const Statement& statement) {
  return std::find(statement.opcode.begin(), statement.opcode.end(), "ftz") != statement.opcode.end();
}

bool writes(const Instruction& instruction, int32_t reg) {
  for (uint32_t places = instruction.writes; places; places &= places - 1) {
    if (instruction.r[std::countr_zero(places)] == reg) return true;
  }
  return false;
}

bool reads(const Instruction& instruction, int place, int32_t reg) {
  return (instruction.reads >> place & 1) && instruction.r[place] == reg;
}

struct Product {  // a register that holds it
  int32_t reg;
  bool negated;
};

void become_fma(Instruction& sum, const Instruction& product, int place, bool subtract, bool negated,
                Handler handler) {
  const int addend = 3 - place;
  const int32_t other = sum.r[addend];
  const uint32_t addend_read = sum.reads >> addend & 1;
  sum.r[1] = product.r[1];
  sum.r[2] = product.r[2];
  sum.r[3] = other;
  sum.reads = (product.reads & 6) | addend_read << 3;
  sum.d = subtract ? (place == 1 ? kNegateAddend : kNegateProduct) : 0;
  if (negated) sum.d ^= kNegateProduct;
  sum.b = 0;
  sum.handler = handler;
}
}  // namespace

void contract(Function& function) {
  auto& code = function.code->instructions;
  std::vector<char> entered(code.size() + 1, 0);
  for (const Label& label : function.labels) entered[label.statement] = 1;
  const uint64_t seed = mix(config().seed ^ 0x666d61);
  for (size_t m = 0; m < code.size(); ++m) {
    const Instruction& product = code[m];
    const Statement& origin = function.statements[m];
    const std::string& type = origin.opcode.back();
    const Handler handler = contracted(type);
    if (!handler || !is_bare(origin, product, "mul", type) || product.guard != kNoRegister ||
        (product.c & kSaturate))
      continue;
    std::vector<Product> held{{product.r[0], false}};
    for (size_t n = m + 1; n < code.size() && !entered[n] && code[n - 1].flow == Flow::Next; ++n) {
      Instruction& next = code[n];
      const Statement& statement = function.statements[n];
      const bool subtract = is_bare(statement, next, "sub", type);
      const bool adds = subtract || is_bare(statement, next, "add", type);
      const bool negates =
          statement.opcode[0] == "neg" && statement.opcode.back() == type && next.guard == kNoRegister;
      const bool alike = flushes(statement) == flushes(origin);
      const int32_t written = next.r[0];
      std::vector<Product> made;
      for (const Product& one : held) {
        if (negates && alike && reads(next, 1, one.reg)) made.push_back({written, !one.negated});
        const int place = reads(next, 1, one.reg) ? 1 : reads(next, 2, one.reg) ? 2 : 0;
        if (!adds || !alike || !place || !(mix(seed ^ next.index) & 1)) continue;
        become_fma(next, product, place, subtract, one.negated, handler);
        break;
      }
      // Past here a register may hold something else, and the factors may be others.
      std::erase_if(held, [&](const Product& one) { return writes(next, one.reg); });
      held.insert(held.end(), made.begin(), made.end());
      const bool factors_stay = !((product.reads & 2) && writes(next, product.r[1])) &&
                                !((product.reads & 4) && writes(next, product.r[2]));
      if (held.empty() || !factors_stay) break;
    }
  }
}
}  // namespace soft
