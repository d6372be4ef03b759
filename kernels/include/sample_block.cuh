// What the threads of a block do together on a row of logits: reductions, prefix sums, a radix selection, the draw.
//
// Everything here is a largest, a smallest or a sum of integers: it comes out the same in whatever order it is taken.
#pragma once
#include "sample.cuh"

// --- reductions and prefix sums -----------------------------------------------------------------------------------

// Shared memory of a block, for what its threads tell one another.
template <int kThreads>
struct Scratch {
  u64 wide[kThreads / kWarp];
  u32 chosen;
};

struct Largest {
  template <typename T>
  T operator()(T a, T b) const { return a > b ? a : b; }
};

struct Sum {
  template <typename T>
  T operator()(T a, T b) const { return a + b; }
};

// Over the block, in every thread.
template <int kThreads, typename Operation>
inline u64 reduce(u64 x, Operation operation, Scratch<kThreads>& scratch) {
  constexpr int kWarps = kThreads / kWarp;
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x = operation(x, __shfl_xor_sync(~0u, x, lanes));
  __syncthreads();  // the scratch may be in use
  if (threadIdx.x % kWarp == 0) scratch.wide[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = scratch.wide[threadIdx.x % kWarps];
#pragma unroll
  for (int lanes = kWarps / 2; lanes > 0; lanes /= 2) x = operation(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}

struct Prefix {
  u64 before;  // sum over the threads before this one
  u64 total;
};

template <int kThreads>
inline Prefix prefix_sum(u64 x, Scratch<kThreads>& scratch) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  u64 up_to = x;
#pragma unroll
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const u64 more = __shfl_up_sync(~0u, up_to, lanes);
    if (lane >= lanes) up_to += more;
  }
  __syncthreads();
  if (lane == kWarp - 1) scratch.wide[warp] = up_to;
  __syncthreads();
  Prefix prefix = {up_to - x, 0};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const u64 each = scratch.wide[i];
    if (i < warp) prefix.before += each;
    prefix.total += each;
  }
  return prefix;
}

// --- selection ----------------------------------------------------------------------------------------------------

constexpr int kDigits = 2048;

struct Bins {
  u32 low[kDigits], high[kDigits];  // sums of 64 bits
  u64 above;
  u32 chosen;
};

// In two words: an atomic addition of 64 bits in shared memory would be a loop.
inline void add_to_bin(Bins& bins, u32 bin, u64 x) {
  const u32 part = u32(x), before = atomicAdd(bins.low + bin, part);
  const u32 more = u32(x >> 32) + (before + part < before ? 1 : 0);
  if (more != 0) atomicAdd(bins.high + bin, more);
}

// The largest code such that the elements of this code and above measure `wanted` or more; false: all do not. A radix
// selection, 11, 11 and 10 bits at a time. each(f), called by all threads, calls f(code, measure) for the elements of
// this one.
template <int kThreads, typename Each>
inline bool select(u32& code, u64 wanted, const Each& each, Bins& bins, Scratch<kThreads>& scratch) {
  constexpr int kOwn = kDigits / kThreads;
  u64 above = 0;  // what the elements above the prefix measure
  u32 prefix = 0;
#pragma unroll 1
  for (int level = 0; level < 3; ++level) {
    const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
    const int width = level == 2 ? 10 : 11;
    __syncthreads();
    for (int i = threadIdx.x; i < kDigits; i += kThreads) bins.low[i] = bins.high[i] = 0;
    __syncthreads();
    each([&](u32 element, u64 measure) {
      const u32 bin = element >> shift;
      if (level > 0 && bin >> width != prefix) return;
      add_to_bin(bins, bin & ((1u << width) - 1), measure);
    });
    __syncthreads();
    // Thread t has the kOwn bins that follow those of thread t - 1, from the top down.
    u64 own[kOwn], sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int bin = kDigits - 1 - kOwn * threadIdx.x - i;
      own[i] = u64(bins.high[bin]) << 32 | bins.low[bin];
      sum += own[i];
    }
    const Prefix before = prefix_sum(sum, scratch);
    if (above + before.total < wanted) return false;  // in the first level or never
    u64 reached = above + before.before;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (reached < wanted && reached + own[i] >= wanted) {
        bins.chosen = kDigits - 1 - kOwn * threadIdx.x - i;
        bins.above = reached;
      }
      reached += own[i];
    }
    __syncthreads();
    prefix = prefix << width | bins.chosen;
    above = bins.above;
  }
  code = prefix;
  return true;
}

// --- the draw -----------------------------------------------------------------------------------------------------

// An element and its score, as a number that compares as the score does; score 0: there is none.
struct Drawn {
  u64 score;
  u32 token;

  void take(const Drawn& other) {
    if (other.score > score || (other.score == score && other.token < token)) *this = other;
  }
};

constexpr Drawn kNobody = {0, 0xffffffffu};

template <int kThreads>
inline Drawn reduce(const Drawn& drawn, Scratch<kThreads>& scratch) {
  Drawn best;
  best.score = reduce(drawn.score, Largest(), scratch);
  best.token = ~u32(reduce(u64(drawn.score == best.score ? ~drawn.token : 0), Largest(), scratch));
  return best;
}

// Step 8 of the definition: the largest of (value - largest) / temperature - log(e), e being a token's exponential.
struct Race {
  u64 stream;     // of the row's random numbers
  float largest;  // value of the row, not -infinity
  float least;    // value that takes part
  float slope;    // 1 / temperature
  double temperature, inverse;

  Race(const Row& row, float largest, float least)
      : stream(nth(row.key, row.position)), largest(largest), least(least), slope(float(row.inverse_temperature)),
        temperature(row.temperature), inverse(row.inverse_temperature) {}

  // What the score does not reach, since e > u; where it can win at all, right to kMargin / 2.
  float bound(float value, u64 bits) const {
    return (value - largest) * slope - 0.693147181f * log2_approximate(least_u(bits));
  }

  // What the score of an element with this bound exceeds.
  float floor(float bound, u64 bits) const {
    const u32 high = u32(bits >> 32);
    const float e = high >> 31 ? -logf(float(~high) * 0x1p-32f) : -log1pf(-(float(high) + 1.0f) * 0x1p-32f);
    return bound + logf(least_u(bits)) - logf(e) - kMargin;
  }

  // Of an element that takes part.
  float floor_of(float value, u32 token) const {
    const u64 bits = nth(stream, token);
    return floor(bound(value, bits), bits);
  }

  // As a number that compares as it does.
  u64 score(float value, u64 bits) const {
    const double u = __dmul_rn(__dadd_rn(double(bits >> 12), 0.5), 0x1p-52);
    const double depth = divide(__dsub_rn(value, largest), temperature, inverse);
    const long long raw = __double_as_longlong(__dsub_rn(depth, log(-log1p(-u))));
    return raw < 0 ? ~raw : raw | (1ull << 63);
  }

 private:
  static constexpr float kMargin = 1e-3f;

  static float least_u(u64 bits) {
    const u32 high = u32(bits >> 32);
    return high == 0 ? 0x1p-53f : float(high) * 0x1p-32f;
  }
};

// The best of what the block holds; nobody where all are below `floor`, which some token of the row exceeds.
template <int kThreads, typename Held>
inline Drawn draw(const Held& held, const Race& race, float floor, Scratch<kThreads>& scratch) {
  constexpr int kEach = Held::kEach;
  float bounds[kEach], most = -infinity();
  u32 first = 1;  // the element that has it
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    bounds[j] = -infinity();
    if (!held.has(j) || !(held.value[j] >= race.least)) continue;
    bounds[j] = race.bound(held.value[j], nth(race.stream, held.token(j)));
    if (bounds[j] > most) most = bounds[j], first = 1u << j;
  }
  const u64 best = reduce(u64(order_of(most)) << 32 | held.token_of(first), Largest(), scratch);
  most = value_of(u32(best >> 32));
  if (most < floor) return kNobody;
  floor = fmaxf(fmaxf(floor, race.floor(most, nth(race.stream, u32(best)))), -3.4e38f);
  u32 left = 0;  // one element as a rule
#pragma unroll
  for (int j = 0; j < kEach; ++j) left |= (bounds[j] >= floor ? 1u : 0u) << j;
  Drawn drawn = kNobody;
#pragma unroll 1
  for (; left != 0; left &= left - 1) {
    const u32 which = left & -left, token = held.token_of(which);
    drawn.take({race.score(pick(held.value, which), nth(race.stream, token)), token});
  }
  return reduce(drawn, scratch);
}
