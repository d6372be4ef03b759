// The elements of a row, and what `finish` selects from them: what top-k and top-p keep, the draw among them, the
// likeliest tokens.
//
// Kept apart because all of it is written once for two sources: the row's list, and where that does not reach down
// far enough, all of its logits.
#pragma once
#include "sample_block.cuh"

constexpr int kFinishThreads = 512;  // a list is eight elements of each
constexpr int kMostLogprobs = 100;

struct Entry {  // of a list
  u32 order, token;
};

struct Results {
  int* tokens;    // [rows], -1: the row has no sound logit
  int* ids;       // [slots], or none: the next step's input
  float* values;  // [width] of the row: log-probabilities, the token's own first
  int* others;    // [width] their tokens
};

// The list: each thread holds its share.
struct List {
  static constexpr int kEach = kListed / kFinishThreads;

  float value[kEach];
  u32 tokens[kEach];  // kNone past the end

  List(const Entry* list, int count) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = j * kFinishThreads + threadIdx.x;
      const Entry entry = i < count ? list[i] : Entry{kNothing, kNone};
      value[j] = value_of(entry.order);
      tokens[j] = entry.token;
    }
  }

  u32 token(int j) const { return tokens[j]; }
  bool has(int j) const { return tokens[j] != kNone; }
  u32 token_of(u32 which) const { return pick(tokens, which); }

  template <typename F>
  void each_piece(const F& f) const {
    f(*this);
  }

 private:
  static constexpr u32 kNone = 0xffffffffu;
};

// All logits, slice by slice.
struct Logits {
  const float* logits;
  int vocab;
  const Row* row;  // none: as they are
  Tables tables;
  float* stage;

  template <typename F>
  void each_piece(const F& f) const {
#pragma unroll 1
    for (int first = 0; first < vocab; first += kSlice) {
      Slice<kFinishThreads> slice(logits, first, vocab);
      if (row != nullptr) slice.adjust(*row, tables, stage);
      f(slice);
    }
  }
};

// f(value, token) for every element that this thread holds.
template <typename Source, typename F>
inline void each_element(const Source& source, const F& f) {
  source.each_piece([&](const auto& held) {
#pragma unroll
    for (int j = 0; j < held.kEach; ++j) {
      if (held.has(j)) f(held.value[j], held.token(j));
    }
  });
}

using FinishScratch = Scratch<kFinishThreads>;

// The least value that top-k and top-p keep; false: the source does not reach down to it. mass: of the whole row.
template <typename Source>
inline bool filter(float& least, const Source& source, const Row& row, float largest, u64 mass, Bins& bins,
                   FinishScratch& scratch) {
  u32 kept = 0;  // the order of the least value
  if (row.top_k > 0) {
    const auto each = [&](const auto& f) { each_element(source, [&](float x, u32) { f(order_of(x), 1); }); };
    if (!select(kept, row.top_k, each, bins, scratch)) return false;
  }
  if (row.top_p < 1.0) {
    const float scale = row.scale;
    const auto measure = [&](float x) { return order_of(x) >= kept ? mass_of(largest - x, scale) : 0; };
    if (row.top_k > 0) {
      mass = 0;
      each_element(source, [&](float x, u32) { mass += measure(x); });
      mass = reduce(mass, Sum(), scratch);
    }
    const u64 wanted = max(__double2ull_ru(__dmul_rn(row.top_p, double(mass))), 1ull);
    const auto each = [&](const auto& f) {
      each_element(source, [&](float x, u32) { f(order_of(x), measure(x)); });
    };
    if (!select(kept, min(wanted, mass), each, bins, scratch)) return false;
  }
  least = value_of(kept);
  return true;
}

template <typename Source>
inline bool draw_filtered(Drawn& drawn, const Source& source, const Row& row, u64 best, u64 mass, Bins& bins,
                          FinishScratch& scratch) {
  const float largest = value_of(u32(best >> 32));
  float least;
  if (!filter(least, source, row, largest, mass, bins, scratch)) return false;
  const Race race(row, largest, fmaxf(least, __fadd_rn(largest, row.min_p)));
  const float floor = race.floor_of(largest, ~u32(best));
  drawn = kNobody;
  source.each_piece([&](const auto& held) { drawn.take(draw(held, race, floor, scratch)); });
  return true;
}

// The `most` largest, best first and the lowest token first of equals.
template <typename Source>
inline bool list_largest(const Results& results, int most, double normalizer, const Source& source, Entry* entries,
                         Bins& bins, FinishScratch& scratch) {
  u32 least;
  const auto orders = [&](const auto& f) { each_element(source, [&](float x, u32) { f(order_of(x), 1); }); };
  if (!select(least, most, orders, bins, scratch)) return false;
  u64 above = 0;
  each_element(source, [&](float x, u32) { above += order_of(x) > least; });
  above = reduce(above, Sum(), scratch);
  u32 lowest;  // of the complements of the equals' tokens
  const auto equals = [&](const auto& f) {
    each_element(source, [&](float x, u32 token) {
      if (order_of(x) == least) f(~token, 1);
    });
  };
  select(lowest, most - above, equals, bins, scratch);
  if (threadIdx.x == 0) scratch.chosen = 0;
  __syncthreads();
  each_element(source, [&](float x, u32 token) {
    const u32 order = order_of(x);
    if (order < least || (order == least && ~token < lowest)) return;
    entries[atomicAdd(&scratch.chosen, 1)] = {order, token};
  });
  __syncthreads();
  if (threadIdx.x < most) {
    const Entry mine = entries[threadIdx.x];
    int place = 1;
    for (int i = 0; i < most; ++i) {
      const Entry other = entries[i];
      if (other.order > mine.order || (other.order == mine.order && other.token < mine.token)) ++place;
    }
    results.values[place] = float(double(value_of(mine.order)) - normalizer);
    results.others[place] = mine.token;
  }
  return true;
}
