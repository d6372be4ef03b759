// Exchange between the lanes of a warp: shfl, vote, match, redux, activemask. PTX manual 9.7.9.6, 9.7.13.
#include <algorithm>
#include <numeric>

#include "exec.hpp"

namespace soft {
namespace {
// Lanes that execute together may name several groups (tiles of a warp): one call of F for each.
template <auto F, int members_place>
void by_group(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t* members = warp.reg<uint32_t>(i.r[members_place]);
  if (check_members(warp, mask, members) && members[std::countr_zero(mask)] == mask) return F(warp, i, mask);
  uint32_t named[kLanes];
  std::memcpy(named, members, sizeof named);
  while (mask) {
    const int lane = std::countr_zero(mask);
    const uint32_t group = (named[lane] & mask) | 1u << lane;
    F(warp, i, group);
    mask &= ~group;
  }
}

// --- shfl. r: d, p (or none), a, b, c, membermask; a: the mode
enum ShuffleMode : uint8_t { kUp, kDown, kBfly, kIdx };

void shfl_run(Warp& warp, const Instruction& i, uint32_t mask) {
  uint32_t from[kLanes], result[kLanes], in_range = 0;
  std::memcpy(from, warp.reg<uint32_t>(i.r[2]), sizeof from);
  const uint32_t *b = warp.reg<uint32_t>(i.r[3]), *c = warp.reg<uint32_t>(i.r[4]);
  each_lane(mask, [&](int lane) {
    const int bval = int(b[lane] & 0x1f), cval = int(c[lane] & 0x1f), segment = int(c[lane] >> 8 & 0x1f);
    const int most = (lane & segment) | (cval & ~segment), least = lane & segment;
    int j = 0;
    bool valid = false;
    switch (i.a) {
      case kUp:
        j = lane - bval;
        valid = j >= most;
        break;
      case kDown:
        j = lane + bval;
        valid = j <= most;
        break;
      case kBfly:
        j = lane ^ bval;
        valid = j <= most;
        break;
      default:
        j = least | (bval & ~segment);
        valid = j <= most;
        break;
    }
    if (!valid) j = lane;
    in_range |= uint32_t(valid) << lane;
    if (!(mask >> j & 1)) {
      finding("shfl-inactive-source", "lane " + std::to_string(j) + ", which does not take part, is read", warp.site,
              lane);
    }
    result[lane] = from[j];
  });
  blend(warp.reg<uint32_t>(i.r[0]), result, mask);
  if (i.r[1] != kNoRegister) write_predicate(warp, i.r[1], mask, in_range);
}

void shfl(Decoder& d) {
  d.need(60, 30);
  if (!d.take("sync")) d.refuse("shfl without .sync is gone from sm_70 on");
  d.ins.a = uint8_t(d.want_one_of({"up", "down", "bfly", "idx"}));
  d.want_type({Type::B32});
  int second = 0;
  d.out_pair(Type::B32, true, &second);
  for (int n = 0; n < 4; ++n) d.in(Type::B32);
  d.done(by_group<shfl_run, 5>);
}

// --- vote. r: d, a, membermask; a: the mode, b: a negated
enum VoteMode : uint8_t { kAll, kAny, kUni, kBallot };
void vote_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const uint32_t votes = read_predicate(warp, i.r[1], i.b) & mask;
  if (i.a == kBallot) {
    for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int) { return votes; });
    return;
  }
  const bool result = i.a == kAll ? votes == mask : i.a == kAny ? votes != 0 : votes == 0 || votes == mask;
  write_predicate(warp, i.r[0], mask, result ? ~0u : 0);
}

void vote(Decoder& d) {
  d.need(60, 30);
  if (!d.take("sync")) d.refuse("vote without .sync is gone from sm_70 on");
  d.ins.a = uint8_t(d.want_one_of({"all", "any", "uni", "ballot"}));
  const bool ballot = d.ins.a == kBallot;
  d.want_type({ballot ? Type::B32 : Type::Pred});
  d.out(ballot ? Type::B32 : Type::Pred);
  bool negated = false;
  d.in_predicate(&negated);
  d.ins.b = negated;
  d.in(Type::B32);
  d.done(by_group<vote_run, 2>);
}

// --- match. r: d, p (or none), a, membermask; a: all
template <class T>
void match_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[2]);
  uint32_t same[kLanes] = {}, all = 0;
  each_lane(mask, [&](int lane) {
    each_lane(mask, [&](int other) { same[lane] |= uint32_t(a[lane] == a[other]) << other; });
    all |= uint32_t(same[lane] == mask) << lane;
  });
  for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int lane) { return !i.a || same[lane] == mask ? same[lane] : 0u; });
  if (i.r[1] != kNoRegister) write_predicate(warp, i.r[1], mask, all);
}

void match(Decoder& d) {
  d.need(60, 70);
  d.ins.a = d.want_one_of({"any", "all"}) == 1;
  d.want_one_of({"sync"});
  const Type type = d.want_type({Type::B32, Type::B64});
  int second = 0;
  d.out_pair(Type::B32, d.ins.a, &second);
  d.in(type);
  d.in(Type::B32);
  d.done(type == Type::B64 ? by_group<match_run<uint64_t>, 3> : by_group<match_run<uint32_t>, 3>);
}

// --- redux. r: d, a, membermask; a: the operation
enum ReduxOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };
template <class T>
void redux_run(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  T result = a[std::countr_zero(mask)];
  each_lane(mask & (mask - 1), [&](int lane) {
    const T x = a[lane];
    switch (i.a) {
      case kAdd: result = T(uint32_t(result) + uint32_t(x)); break;
      case kMin: result = std::min(result, x); break;
      case kMax: result = std::max(result, x); break;
      case kAnd: result &= x; break;
      case kOr: result |= x; break;
      default: result ^= x; break;
    }
  });
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int) { return result; });
}

void redux(Decoder& d) {
  d.need(70, 80);
  d.want_one_of({"sync"});
  d.ins.a = uint8_t(d.want_one_of({"add", "min", "max", "and", "or", "xor"}));
  const Type type = d.ins.a >= kAnd ? d.want_type({Type::B32}) : d.want_type({Type::U32, Type::S32});
  d.out(type);
  d.in(type);
  d.in(Type::B32);
  d.done(type == Type::S32 ? by_group<redux_run<int32_t>, 2> : by_group<redux_run<uint32_t>, 2>);
}

void activemask_run(Warp& warp, const Instruction& i, uint32_t mask) {
  for_lanes(warp.reg<uint32_t>(i.r[0]), mask, [&](int) { return mask; });
}

void activemask(Decoder& d) {
  d.need(62, 30);
  d.want_type({Type::B32});
  d.out(Type::B32);
  d.done(activemask_run);
}
}  // namespace

void require_aligned(Warp& warp, uint32_t mask, bool whole_warp) {
  const uint32_t wanted = whole_warp ? kFullMask : warp.born;
  if (mask == wanted) return;
  const uint32_t missing = wanted & ~mask;
  const char* why = missing & ~warp.born   ? "were never started"
                    : missing & ~warp.live ? "have exited"
                                           : "are elsewhere";
  fault(719, "aligned", "all lanes of the warp must execute this together; lanes " + hex(missing) + " " + why,
        warp.site, std::countr_zero(missing));
}

bool check_members(Warp& warp, uint32_t mask, const uint32_t* members) {
  bool good = true;
  each_lane(mask, [&](int lane) {
    if (!good) return;
    const uint32_t named = members[lane];
    if (!(named >> lane & 1)) {
      finding("membermask-without-self", "membermask " + hex(named) + " does not name the lane that executes it",
              warp.site, lane);
      good = false;
    } else if (named & ~mask) {
      const uint32_t missing = named & ~mask;
      finding("membermask-inactive",
              "membermask " + hex(named) + " names lanes " + hex(missing) +
                  (missing & ~warp.live ? ", which have exited or never started" : ", which are elsewhere"),
              warp.site, lane);
      good = false;
    } else if (named != members[std::countr_zero(mask)] && named != mask) {
      // Lanes that name disjoint groups may execute together; a group that disagrees with itself may not.
      each_lane(named, [&](int other) {
        if (good && members[other] != named) {
          finding("membermask-differs", "lanes of one group name different membermasks", warp.site, lane);
          good = false;
        }
      });
    }
  });
  return good;
}

void add_warp_opcodes(Opcodes& table) {
  table["shfl"] = shfl;
  table["vote"] = vote;
  table["match"] = match;
  table["redux"] = redux;
  table["activemask"] = activemask;
}
}  // namespace soft
