// From logits to tokens: what app/device/sampling.py defines, for all rows of a step at once.
//
//   scan     slices x rows   the largest adjusted logit; for log-probabilities the mass of the raw ones; for a
//                            selection how many logits fall into each quarter of a unit
//   gather   slices x rows   rows without top-k and top-p: the draw. With: the list of their likeliest tokens
//   finish   rows            from the list, top-k, top-p and the draw; log-probabilities; the token
//   greedy   rows            instead of gather and finish where no row of the batch asks for more
//
// A slice is 4,096 logits of a row, thread t of a block holds t, t + 256, ... of them:
//
//   logit    | 0 .. 255 | 256 .. 511 | ...  4095 | 4096 ...
//   block    |                0                  |    1
//   thread   | 0 .. 255 |  0 .. 255  | ...
//
// Nothing depends on what the rows ask for but early exits, so that a graph holds the launches of any batch. Sums of
// masses and counts are integers, so that whatever order blocks and atomic additions come in, no bit changes.
//
// Adjusted logits are not stored: each kernel makes them anew from the raw ones, which log-probabilities are of.
#include "sample_source.cuh"

constexpr int kThreads = 256;       // of scan and gather
constexpr int kTokenThreads = 128;  // of greedy: a warp a row
constexpr int kMostSlices = 64;

// What scan and gather find out about a slice.
struct Part {
  u64 best;      // of the adjusted logits: the order of the largest, and below it the complement of its lowest token
  u64 mass;      // of the adjusted logits, relative to the row's largest
  u64 raw_mass;  // of the raw logits, relative to the slice's largest
  u64 score;     // of the draw: Drawn
  u32 token;
  u32 raw_largest;  // its order
};

// Of a row's adjusted logits, and of its raw ones. All zero between steps: finish leaves it so.
struct Tally {
  u32 bins[kBins];  // logits by value
  u32 listed;       // entries of the list
};

enum { kAdjusted, kRaw, kTallies };

// --- scan ---------------------------------------------------------------------------------------------------------

template <typename Held>
inline void count(u32* bins, const Held& held) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Held::kEach; ++j) {
    if (held.has(j)) atomicAdd(bins + bin_of(held.value[j]), 1);
  }
}

inline void add_counts(Tally& tally, const u32* bins) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) {
    if (bins[i] != 0) atomicAdd(tally.bins + i, bins[i]);
  }
}

template <typename Held>
inline u64 largest_of(const Held& held, Scratch<kThreads>& scratch) {
  u32 most = 0;
  int first = 0;  // the lowest of equals
#pragma unroll
  for (int j = 0; j < Held::kEach; ++j) {
    const u32 order = order_of(held.value[j]);
    if (order > most) most = order, first = j;
  }
  return reduce(u64(most) << 32 | ~held.token(first), Largest(), scratch);
}

extern "C" __global__ __launch_bounds__(kThreads, 3) void sample_scan(
    Part* parts, Tally* tallies, const float* logits, i64 stride, int vocab, const Row* rows, const Change* changes,
    const u32* masks, const u16* counts) {
  __shared__ Scratch<kThreads> scratch;
  __shared__ float stage[kSlice];
  __shared__ u32 bins[kBins];
  const Row& row = rows[blockIdx.y];
  if (row.kind == kIdle) return;
  Part& part = parts[i64(blockIdx.y) * gridDim.x + blockIdx.x];
  Tally* tally = tallies + i64(blockIdx.y) * kTallies;
  Slice<kThreads> held(logits + blockIdx.y * stride, blockIdx.x * kSlice, vocab);

  if (row.logprobs >= 0) {
    const u32 largest = u32(largest_of(held, scratch) >> 32);
    u64 mass = 0;
#pragma unroll
    for (int j = 0; j < held.kEach; ++j) mass += mass_of(value_of(largest) - held.value[j], kLog2E);
    mass = reduce(mass, Sum(), scratch);
    if (threadIdx.x == 0) {
      part.raw_largest = largest;
      part.raw_mass = mass;
    }
    if (row.logprobs > 0) {
      count(bins, held);
      add_counts(tally[kRaw], bins);
    }
  }
  if (row.kind == kScore) return;
  held.adjust(row, {changes, masks, counts}, stage);
  const u64 best = largest_of(held, scratch);
  if (threadIdx.x == 0) part.best = best;
  if (row.filtered()) {
    count(bins, held);
    add_counts(tally[kAdjusted], bins);
  }
}

// --- gather -------------------------------------------------------------------------------------------------------

// Over the slices of a row, which are fewer than threads.
template <int kAll>
inline u64 best_part(const Part* parts, int slices, Scratch<kAll>& scratch) {
  static_assert(kMostSlices <= kAll);
  return reduce(threadIdx.x < slices ? parts[threadIdx.x].best : 0, Largest(), scratch);
}

// The lowest bin that goes into the list: from the top down, while `enough` are not there and the next bin fits.
inline int cut(const u32* bins, u32 enough, Scratch<kThreads>& scratch) {
  constexpr int kOwn = kBins / kThreads;
  u32 own[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += own[i] = bins[kBins - 1 - kOwn * threadIdx.x - i];
  u64 above = prefix_sum(sum, scratch).before;
  u32 taken = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (above < enough && above + own[i] <= kListed) ++taken;
    above += own[i];
  }
  return kBins - int(reduce(u64(taken), Sum(), scratch));
}

// Appends what is in `lowest` or above, in whatever order blocks come.
template <typename Held>
inline void append(Entry* list, Tally& tally, int lowest, const Held& held, Scratch<kThreads>& scratch) {
  u32 wanted = 0;
#pragma unroll
  for (int j = 0; j < Held::kEach; ++j) {
    if (held.has(j) && bin_of(held.value[j]) >= lowest) wanted |= 1u << j;
  }
  const Prefix prefix = prefix_sum(u64(__popc(wanted)), scratch);
  if (prefix.total == 0) return;
  if (threadIdx.x == 0) scratch.chosen = atomicAdd(&tally.listed, u32(prefix.total));
  __syncthreads();
  list += scratch.chosen + u32(prefix.before);
#pragma unroll
  for (int j = 0; j < Held::kEach; ++j) {
    if (wanted >> j & 1) *list++ = {order_of(held.value[j]), held.token(j)};
  }
}

extern "C" __global__ __launch_bounds__(kThreads, 3) void sample_gather(
    Part* parts, Tally* tallies, Entry* lists, const float* logits, i64 stride, int vocab, const Row* rows,
    const Change* changes, const u32* masks, const u16* counts) {
  __shared__ Scratch<kThreads> scratch;
  __shared__ float stage[kSlice];
  const Row& row = rows[blockIdx.y];
  bool raw = row.kind != kIdle && row.logprobs > 0, adjusted = row.kind == kDraw;
  if (!raw && !adjusted) return;
  Part* row_parts = parts + i64(blockIdx.y) * gridDim.x;
  Part& part = row_parts[blockIdx.x];
  Tally* tally = tallies + i64(blockIdx.y) * kTallies;
  Entry* list = lists + i64(blockIdx.y) * kTallies * kListed;

  // What of the slice is wanted: to make a list, nothing where all of it is below.
  int lowest = 0, raw_lowest = 0;
  u64 best = 0;
  if (raw) {
    raw_lowest = cut(tally[kRaw].bins, row.logprobs, scratch);
    raw = bin_of(value_of(part.raw_largest)) >= raw_lowest;
  }
  if (adjusted) {
    best = best_part(row_parts, gridDim.x, scratch);
    adjusted = is_sound(u32(best >> 32));
  }
  if (adjusted && row.filtered()) {
    lowest = cut(tally[kAdjusted].bins, row.top_k > 0 ? row.top_k : kListed, scratch);
    adjusted = row.top_k == 0 || bin_of(value_of(u32(part.best >> 32))) >= lowest;
  }
  if (!raw && !adjusted) return;

  Slice<kThreads> held(logits + blockIdx.y * stride, blockIdx.x * kSlice, vocab);
  if (raw) append(list + kRaw * kListed, tally[kRaw], raw_lowest, held, scratch);
  if (!adjusted) return;
  held.adjust(row, {changes, masks, counts}, stage);
  const float largest = value_of(u32(best >> 32));
  if (row.filtered()) {
    append(list + kAdjusted * kListed, tally[kAdjusted], lowest, held, scratch);
    if (row.top_k > 0) return;
    u64 mass = 0;
#pragma unroll
    for (int j = 0; j < held.kEach; ++j) mass += mass_of(largest - held.value[j], row.scale);
    mass = reduce(mass, Sum(), scratch);
    if (threadIdx.x == 0) part.mass = mass;
  } else {
    const Race race(row, largest, __fadd_rn(largest, row.min_p));
    const Drawn drawn = draw(held, race, race.floor_of(largest, ~u32(best)), scratch);
    if (threadIdx.x == 0) {
      part.score = drawn.score;
      part.token = drawn.token;
    }
  }
}

// --- finish -------------------------------------------------------------------------------------------------------

// log(sum(exp(logits))) from the slices' sums; NaN where a logit is none.
inline double normalizer_of(const Part* parts, int slices, FinishScratch& scratch) {
  const bool mine = threadIdx.x < slices;
  const u32 own = mine ? parts[threadIdx.x].raw_largest : kNothing;
  const u32 order = u32(reduce(u64(own), Largest(), scratch));
  if (!is_sound(order)) return __longlong_as_double(0x7ff8000000000000);
  const float largest = value_of(order);
  u64 mass = 0;
  if (mine) {
    const double depth = largest - value_of(own);
    mass = __double2ull_rn(double(parts[threadIdx.x].raw_mass) * exp(-depth));
  }
  return largest + log(double(reduce(mass, Sum(), scratch)) * kMassUnit);
}

// Where the token of a row goes.
inline void conclude(int token, int number, const Row& row, const Results& results, u16* counts, int vocab) {
  results.tokens[number] = token;
  if (row.slot >= 0) results.ids[row.slot] = token;
  if (row.history >= 0 && token >= 0) {
    u16& count = counts[row.history * count_stride(vocab) + token];
    if ((count & kMostCounted) < kMostCounted) ++count;
  }
}

extern "C" __global__ __launch_bounds__(kFinishThreads, 1) void sample_finish(
    int* tokens, int* ids, float* values, int* others, int width, Tally* tallies, const Part* parts, int slices,
    const Entry* lists, const float* logits, i64 stride, int vocab, const Row* rows, const Change* changes,
    const u32* masks, u16* counts) {
  __shared__ FinishScratch scratch;
  __shared__ float stage[kSlice];
  __shared__ Bins bins;
  __shared__ Entry entries[kMostLogprobs];
  const Row& row = rows[blockIdx.x];
  if (row.kind == kIdle) return;
  const Results results = {tokens, ids, values + i64(blockIdx.x) * width, others + i64(blockIdx.x) * width};
  parts += i64(blockIdx.x) * slices;
  tallies += i64(blockIdx.x) * kTallies;
  lists += i64(blockIdx.x) * kTallies * kListed;
  logits += blockIdx.x * stride;

  int token = row.target;
  if (row.kind != kScore) {
    const u64 best = best_part(parts, slices, scratch);
    token = is_sound(u32(best >> 32)) ? int(~u32(best)) : -1;
    if (row.kind == kDraw && token >= 0) {
      const bool mine = threadIdx.x < slices;
      Drawn drawn = kNobody;
      if (row.filtered()) {
        const u64 own = mine && row.top_k == 0 ? parts[threadIdx.x].mass : 0;
        const u64 mass = reduce(own, Sum(), scratch);
        const List list(lists + kAdjusted * kListed, tallies[kAdjusted].listed);
        const Logits all = {logits, vocab, &row, {changes, masks, counts}, stage};
        if (!draw_filtered(drawn, list, row, best, mass, bins, scratch)) {
          draw_filtered(drawn, all, row, best, mass, bins, scratch);
        }
      } else {
        if (mine) drawn = {parts[threadIdx.x].score, parts[threadIdx.x].token};
        drawn = reduce(drawn, scratch);
      }
      token = drawn.token;
    }
    if (threadIdx.x == 0) conclude(token, blockIdx.x, row, results, counts, vocab);
  }

  if (row.logprobs >= 0 && token >= 0) {
    const double normalizer = normalizer_of(parts, slices, scratch);
    if (threadIdx.x == 0) {
      results.values[0] = float(double(logits[token]) - normalizer);
      results.others[0] = token;
    }
    if (isnan(normalizer)) {
      if (threadIdx.x < row.logprobs) {
        results.values[1 + threadIdx.x] = float(normalizer);
        results.others[1 + threadIdx.x] = -1;
      }
    } else if (row.logprobs > 0) {
      const List list(lists + kRaw * kListed, tallies[kRaw].listed);
      const Logits all = {logits, vocab, nullptr, {}, nullptr};
      if (!list_largest(results, row.logprobs, normalizer, list, entries, bins, scratch)) {
        list_largest(results, row.logprobs, normalizer, all, entries, bins, scratch);
      }
    }
  }
  if (row.filtered() || row.logprobs > 0) {  // whose lists all threads have read, barriers ago
    u32* words = reinterpret_cast<u32*>(tallies);
    for (int i = threadIdx.x; i < kTallies * sizeof(Tally) / sizeof(u32); i += kFinishThreads) words[i] = 0;
  }
}

// --- greedy -------------------------------------------------------------------------------------------------------

extern "C" __global__ __launch_bounds__(kTokenThreads, 8) void sample_greedy(
    int* tokens, int* ids, const Part* parts, int slices, int vocab, const Row* rows, int row_count, u16* counts) {
  const int number = blockIdx.x * (kTokenThreads / kWarp) + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (number >= row_count || rows[number].kind == kIdle) return;
  u64 best = 0;
  for (int i = lane; i < slices; i += kWarp) best = max(best, parts[i64(number) * slices + i].best);
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) best = max(best, __shfl_xor_sync(~0u, best, lanes));
  const int token = is_sound(u32(best >> 32)) ? int(~u32(best)) : -1;
  if (lane == 0) conclude(token, number, rows[number], {tokens, ids, nullptr, nullptr}, counts, vocab);
}

// --- history ------------------------------------------------------------------------------------------------------

// A sequence that joins, or comes back after a preemption: its tokens so far, as counts.
struct History {
  i64 first;  // of the tokens: those of the prompt, then the generated ones
  i64 row;    // of the counts
  int prompt, generated;
};

extern "C" __global__ __launch_bounds__(kThreads, 4) void sample_history(
    u16* counts, int vocab, const History* histories, const int* tokens) {
  __shared__ u32 seen[kSlice];
  const History& history = histories[blockIdx.y];
  const int first = blockIdx.x * kSlice;
  for (int i = threadIdx.x; i < kSlice; i += kThreads) seen[i] = 0;
  __syncthreads();
  tokens += history.first;
  for (int i = threadIdx.x; i < history.prompt + history.generated; i += kThreads) {
    const u32 at = tokens[i] - first;
    if (at >= kSlice) continue;
    if (i < history.prompt) atomicOr(seen + at, 0x80000000u);
    else atomicAdd(seen + at, 1);
  }
  __syncthreads();
  counts += history.row * count_stride(vocab) + first;
  for (int i = threadIdx.x; i < kSlice && first + i < vocab; i += kThreads) {
    counts[i] = u16(min(seen[i] & 0x7fffffffu, kMostCounted) | (seen[i] >> 31) * kInPrompt);
  }
}
