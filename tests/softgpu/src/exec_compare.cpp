// Comparison and selection: setp, set, selp, slct. PTX manual 9.7.5 and 9.7.6.
#include <cmath>

#include "exec.hpp"
#include "float.hpp"

namespace soft {
namespace {
enum Comparison { kEq, kNe, kLt, kLe, kGt, kGe, kLo, kLs, kHi, kHs, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <class T>
bool unordered(T a, T b) {
  return a != a || b != b;
}

template <class T, int op>
bool holds(T a, T b) {
  switch (op) {
    case kEq: return a == b;
    case kNe: return a != b && !unordered(a, b);
    case kLt:
    case kLo: return a < b;
    case kLe:
    case kLs: return a <= b;
    case kGt:
    case kHi: return a > b;
    case kGe:
    case kHs: return a >= b;
    case kEqu: return a == b || unordered(a, b);
    case kNeu: return a != b;
    case kLtu: return !(a >= b);
    case kLeu: return !(a > b);
    case kGtu: return !(a <= b);
    case kGeu: return !(a < b);
    case kNum: return !unordered(a, b);
    default: return unordered(a, b);
  }
}

template <class T, int op>
uint32_t compare_lanes(const T* a, const T* b) {
  uint8_t each[kLanes];
  SOFT_LANES
    each[lane] = holds<T, op>(a[lane], b[lane]);
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result |= uint32_t(each[lane]) << lane;
  return result;
}

template <class T>
uint32_t compare(int op, const T* a, const T* b) {
  switch (op) {
    case kEq: return compare_lanes<T, kEq>(a, b);
    case kNe: return compare_lanes<T, kNe>(a, b);
    case kLt:
    case kLo: return compare_lanes<T, kLt>(a, b);
    case kLe:
    case kLs: return compare_lanes<T, kLe>(a, b);
    case kGt:
    case kHi: return compare_lanes<T, kGt>(a, b);
    case kGe:
    case kHs: return compare_lanes<T, kGe>(a, b);
    default: break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case kEqu: return compare_lanes<T, kEqu>(a, b);
      case kNeu: return compare_lanes<T, kNeu>(a, b);
      case kLtu: return compare_lanes<T, kLtu>(a, b);
      case kLeu: return compare_lanes<T, kLeu>(a, b);
      case kGtu: return compare_lanes<T, kGtu>(a, b);
      case kGeu: return compare_lanes<T, kGeu>(a, b);
      case kNum: return compare_lanes<T, kNum>(a, b);
      default: return compare_lanes<T, kNan>(a, b);
    }
  }
  return 0;
}

// How the two sources are read before they are compared.
enum Read : uint8_t {
  kU16,
  kU32,
  kU64,
  kS16,
  kS32,
  kS64,
  kF32,
  kF32Ftz,
  kF64,
  kHalf,
  kHalfFtz,
  kBf16,
  kHalf2,
  kHalf2Ftz,
  kBf162
};

// The lanes where the comparison holds; for packed types the second element's go to *second.
uint32_t compare_registers(const Warp& warp, const Instruction& i, int ra, int rb, uint32_t* second) {
  const auto plain = [&]<class T>(T) { return compare<T>(i.a, warp.reg<T>(ra), warp.reg<T>(rb)); };
  float a[kLanes], b[kLanes];
  const auto half = [&](int shift, bool packed, bool brain, bool flush) {
    const auto widen = [&](int reg, float* out) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const uint16_t bits =
            packed ? uint16_t(warp.reg<uint32_t>(reg)[lane] >> shift) : warp.reg<uint16_t>(reg)[lane];
        out[lane] = brain ? bf16_to_float(bits) : half_to_float(flush ? flush_half(bits) : bits);
      }
    };
    widen(ra, a);
    widen(rb, b);
    return compare<float>(i.a, a, b);
  };
  switch (i.b) {
    case kU16: return plain(uint16_t());
    case kU32: return plain(uint32_t());
    case kU64: return plain(uint64_t());
    case kS16: return plain(int16_t());
    case kS32: return plain(int32_t());
    case kS64: return plain(int64_t());
    case kF32: return plain(float());
    case kF64: return plain(double());
    case kF32Ftz:
      for (int lane = 0; lane < kLanes; ++lane) {
        a[lane] = flush(warp.reg<float>(ra)[lane]);
        b[lane] = flush(warp.reg<float>(rb)[lane]);
      }
      return compare<float>(i.a, a, b);
    case kHalf: return half(0, false, false, false);
    case kHalfFtz: return half(0, false, false, true);
    case kBf16: return half(0, false, true, false);
    default: {
      const bool brain = i.b == kBf162, ftz = i.b == kHalf2Ftz;
      *second = half(16, true, brain, ftz);
      return half(0, true, brain, ftz);
    }
  }
}

uint32_t combine(int boolean, uint32_t compared, uint32_t c) {
  switch (boolean) {
    case 0: return compared & c;
    case 1: return compared | c;
    case 2: return compared ^ c;
    default: return compared;
  }
}

// r: p, q (or none), a, b, c (or none)
void setp_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t second = 0;
  const uint32_t first = compare_registers(warp, i, i.r[2], i.r[3], &second);
  const uint32_t c = i.c < 3 ? read_predicate(warp, i.r[4], i.d) : 0;
  const bool packed = i.b >= kHalf2;
  const uint32_t p = combine(i.c, first, c);
  const uint32_t q = packed ? combine(i.c, second, c) : combine(i.c, ~first, c);
  write_predicate(warp, i.r[0], mask, p);
  if (i.r[1] != kNoRegister) write_predicate(warp, i.r[1], mask, q);
}

struct ReadFact {
  Type type;
  Read plain, ftz;
};
constexpr ReadFact kReads[] = {
    {Type::B16, kU16, kU16},          {Type::B32, kU32, kU32},    {Type::B64, kU64, kU64},
    {Type::U16, kU16, kU16},          {Type::U32, kU32, kU32},    {Type::U64, kU64, kU64},
    {Type::S16, kS16, kS16},          {Type::S32, kS32, kS32},    {Type::S64, kS64, kS64},
    {Type::F32, kF32, kF32Ftz},       {Type::F64, kF64, kF64},    {Type::F16, kHalf, kHalfFtz},
    {Type::F16x2, kHalf2, kHalf2Ftz}, {Type::BF16, kBf16, kBf16}, {Type::BF16x2, kBf162, kBf162}};

int take_comparison(Decoder& d) {
  return d.want_one_of({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
                        "geu", "num", "nan"});
}

void set_read(Decoder& d, Type type, bool ftz) {
  const int op = d.ins.a;
  const bool bits = type == Type::B16 || type == Type::B32 || type == Type::B64;
  const bool unsigned_op = op >= kLo && op <= kHs;
  if ((op >= kEqu && !is_float(type)) || (bits && op > kNe) || (unsigned_op && (is_float(type) || is_signed(type)))) {
    d.refuse("this comparison of ." + std::string(name_of(type)));
  }
  if (ftz && type != Type::F32 && type != Type::F16 && type != Type::F16x2)
    d.refuse(".ftz of ." + std::string(name_of(type)));
  if (type == Type::BF16 || type == Type::BF16x2) d.need(78, 90);
  if (type == Type::F16 || type == Type::F16x2) d.need(42, 53);
  for (const ReadFact& fact : kReads) {
    if (fact.type == type) {
      d.ins.b = ftz ? fact.ftz : fact.plain;
      return;
    }
  }
  d.not_built("comparing ." + std::string(name_of(type)));
}

void setp(Decoder& d) {
  d.ins.a = uint8_t(take_comparison(d));
  const int boolean = d.take_one_of({"and", "or", "xor"});
  const bool ftz = d.take("ftz");
  const Type type = d.take_type();
  set_read(d, type, ftz);
  int second = 0;
  d.out_pair(Type::Pred, true, &second);
  if ((type == Type::F16x2 || type == Type::BF16x2) && d.ins.r[second] == kNoRegister) {
    d.refuse("a packed comparison has two destinations");
  }
  d.in(type);
  d.in(type);
  d.ins.c = 3;
  if (boolean >= 0) {
    bool negated = false;
    d.in_predicate(&negated);
    d.ins.c = uint8_t(boolean);
    d.ins.d = negated;
  }
  d.done(setp_run);
}

// set: true is all ones of an integer and 1.0 of a float. r: d, a, b, c
template <class D>
void set_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t second = 0;
  const uint32_t c = i.c < 3 ? read_predicate(warp, i.r[3], i.d) : 0;
  const uint32_t first = combine(i.c, compare_registers(warp, i, i.r[1], i.r[2], &second), c);
  second = combine(i.c, second, c);
  const D truth = D(i.immediate);
  if (i.b >= kHalf2) {  // two halves; truth fills one
    for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) {
      return D((first >> lane & 1 ? truth & D(0xffff) : D(0)) |
               (second >> lane & 1 ? truth & D(0xffff0000ull) : D(0)));
    });
    return;
  }
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return first >> lane & 1 ? truth : D(0); });
}

void set(Decoder& d) {
  d.ins.a = uint8_t(take_comparison(d));
  const int boolean = d.take_one_of({"and", "or", "xor"});
  const bool ftz = d.take("ftz");
  const Type to = d.want_type(
      {Type::U32, Type::S32, Type::F32, Type::U16, Type::S16, Type::F16, Type::BF16, Type::F16x2, Type::BF16x2});
  const Type type = d.take_type();
  set_read(d, type, ftz);
  const bool half_source = type == Type::F16 || type == Type::BF16;
  const bool packed = type == Type::F16x2 || type == Type::BF16x2;
  const bool packed_result = to == Type::F16x2 || to == Type::BF16x2;
  if (packed_result && to != type) d.refuse("packed results of other types");
  if ((to == Type::U16 || to == Type::S16 || to == Type::F16 || to == Type::BF16) && !half_source)
    d.refuse("a 16-bit result");
  if (half_source && to == Type::F32) d.refuse("an f32 result of halves");
  if (to == Type::BF16 || to == Type::BF16x2) d.need(78, 90);
  if (packed && !packed_result && to != Type::U32 && to != Type::S32) d.refuse("this result of a packed comparison");
  d.out(to);
  d.in(type);
  d.in(type);
  d.ins.c = 3;
  if (boolean >= 0) {
    bool negated = false;
    d.in_predicate(&negated);
    d.ins.c = uint8_t(boolean);
    d.ins.d = negated;
  }
  switch (to) {
    case Type::F32: d.ins.immediate = 0x3f800000; break;
    case Type::F16: d.ins.immediate = 0x3c00; break;
    case Type::BF16: d.ins.immediate = 0x3f80; break;
    case Type::F16x2: d.ins.immediate = 0x3c003c00; break;
    case Type::BF16x2: d.ins.immediate = 0x3f803f80; break;
    default: d.ins.immediate = -1; break;
  }
  d.done(width_of(to) == 2 ? set_run<uint16_t> : set_run<uint32_t>);
}

template <class T>
struct Selp {
  static void run(Warp& warp, const Instruction& i, uint32_t mask) {
    const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]);
    const uint32_t p = read_predicate(warp, i.r[3], i.a);
    for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) { return (p >> lane & 1) ? a[lane] : b[lane]; });
  }
};

void selp(Decoder& d) {
  const Type type = d.want_type({Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16,
                                 Type::S32, Type::S64, Type::F32, Type::F64});
  bool negated = false;
  d.out(type);
  d.in(type);
  d.in(type);
  d.in_predicate(&negated);
  if (negated) d.refuse("a negated predicate of selp");
  d.ins.definedness = Definedness::Selects;
  d.done(by_bits_type<Selp>(type));
}

// slct: a where c >= 0, else b; of a float c, NaN selects b and -0 counts as 0.
template <class T>
struct SlctInt {
  static void run(Warp& warp, const Instruction& i, uint32_t mask) {
    const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]);
    const int32_t* c = warp.reg<int32_t>(i.r[3]);
    for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) { return c[lane] >= 0 ? a[lane] : b[lane]; });
  }
};
template <class T>
struct SlctFloat {
  static void run(Warp& warp, const Instruction& i, uint32_t mask) {
    const T *a = warp.reg<T>(i.r[1]), *b = warp.reg<T>(i.r[2]);
    const float* c = warp.reg<float>(i.r[3]);
    for_lanes(warp.reg<T>(i.r[0]), mask,
              [&](int lane) { return (i.a ? flush(c[lane]) : c[lane]) >= 0 ? a[lane] : b[lane]; });
  }
};

void slct(Decoder& d) {
  d.ins.a = d.take("ftz");
  const Type type = d.want_type({Type::B16, Type::B32, Type::B64, Type::U16, Type::U32, Type::U64, Type::S16,
                                 Type::S32, Type::S64, Type::F32, Type::F64});
  const Type by = d.ins.a ? d.want_type({Type::F32}) : d.want_type({Type::S32, Type::F32});
  d.out(type);
  d.in(type);
  d.in(type);
  d.in(by);
  d.done(by == Type::F32 ? by_bits_type<SlctFloat>(type) : by_bits_type<SlctInt>(type));
}
}  // namespace

void add_compare_opcodes(Opcodes& table) {
  table["setp"] = setp;
  table["set"] = set;
  table["selp"] = selp;
  table["slct"] = slct;
}
}  // namespace soft
