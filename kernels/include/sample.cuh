// One row of logits on its way to a token: the row's parameters, a slice of its logits with bias, penalties, bans and
// mask applied, and the numbers that tokens are compared by.
//
// Kept apart because all kernels of `sample` go through the same slices and must see the same values to the bit.
// app/device/sampling.py is the definition; ROW and CHANGE in app/device/cuda/sample.py are these structs.
#pragma once
#include "types.cuh"

constexpr int kSlice = 4096;   // logits of a block
constexpr int kBins = 1024;    // of a tally: quarters of a logit from -128 to 128, and what lies beyond at both ends
constexpr int kListed = 4096;  // tokens that a row's list has room for

enum Kind { kIdle, kGreedy, kDraw, kScore };  // kIdle: a row that only fills the grid. kScore: `target` is the token

struct Row {
  u64 key;  // of the sequence's random numbers
  double temperature, inverse_temperature;
  double top_p;  // 1: no nucleus
  double repetition, inverse_repetition, frequency, presence;
  float scale;  // log2(e) / temperature
  float min_p;  // log(min_p) * temperature; -infinity: none
  int kind;
  int position;    // generated tokens before this one
  int min_tokens;  // bans hold below this position
  int top_k;       // 0: no limit
  int logprobs;    // alternatives; -1: no log-probabilities
  int target;
  int first_change;   // in the list of changes: `changes` additions, then `bans` more, each ascending by token
  int changes, bans;
  int mask, history;  // rows of the masks and of the counts; -1: none
  int slot;           // of the ids; -1: none

  bool filtered() const { return kind == kDraw && (top_k > 0 || top_p < 1.0); }  // by what takes a selection
};

struct Change {
  int token;
  float addend;  // -infinity: a ban
};

// What the tables hold beside a row's logits.
struct Tables {
  const Change* changes;
  const u32* masks;   // [., vocab / 32, rounded up]: bit token % 32 of word token / 32 allows a token
  const u16* counts;  // [., count_stride(vocab)]: how often a token was generated; kInPrompt: it is in the prompt
};

constexpr u32 kInPrompt = 0x8000, kMostCounted = 0x7fff;

inline i64 count_stride(int vocab) { return (i64(vocab) + 63) / 64 * 64; }

// --- numbers that tokens are compared by --------------------------------------------------------------------------

constexpr u32 kUnsound = 0xffffffffu;  // the order of what no logit may be: NaN and +infinity
constexpr u32 kNothing = 0x007fffffu;  // that of -infinity, the smallest there is

inline float infinity() { return __uint_as_float(0x7f800000u); }

inline float log2_approximate(float x) {  // of a normal number, to 2^-22 of it, or of 1 next to 1
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Compares as the value does; both zeros are equal.
inline u32 order_of(float x) {
  if (!(x < infinity())) return kUnsound;
  const u32 bits = __float_as_uint(x);
  if (bits == 0x80000000u) return bits;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline float value_of(u32 order) { return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order); }

inline bool is_sound(u32 largest) { return largest != kUnsound && largest > kNothing; }

// The bin of a value: ascending with it.
inline int bin_of(float x) { return __float2int_rd(fminf(fmaxf(4.0f * x, -512.0f), 511.0f)) + 512; }

// exp(-depth / temperature) in units of 2^-44, by exact operations: the sum of any number of them is the same in any
// order, and a token's is the same in every kernel. Relative error 2^-23, and that of scale * depth.
constexpr double kMassUnit = 0x1p-44;
constexpr float kLog2E = 1.44269504f;

inline u64 mass_of(float depth, float scale) {
  const float exponent = __fmul_rn(depth, scale);
  if (!(exponent < 45.0f)) return 0;
  const int whole = __float2int_rz(exponent);
  const float x = __fsub_rn(exponent, __int2float_rn(whole));
  float power = __fmaf_rn(x, -0.0009449037f, 0.0092057985f);  // 2^-x, to 2^-23
  power = __fmaf_rn(x, power, -0.05529736f);
  power = __fmaf_rn(x, power, 0.24018015f);
  power = __fmaf_rn(x, power, -0.69314373f);
  power = __fmaf_rn(x, power, 1.0f);
  return u64(__float2uint_rn(__fmul_rn(power, 0x1p31f))) << 13 >> whole;
}

// --- random numbers: app/device/random.py -------------------------------------------------------------------------

constexpr u64 kGamma = 0x9e3779b97f4a7c15ull;

inline u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline u64 nth(u64 state, u32 n) { return mix(state + (u64(n) + 1) * kGamma); }

// --- a slice of a row ---------------------------------------------------------------------------------------------

// a / b, rounded as a division is (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990), by the rounded reciprocal of b: a division would take a call and its registers.
inline double divide(double a, double b, double reciprocal) {
  const double quotient = __dmul_rn(a, reciprocal);
  if (!(fabs(quotient) < 1e300)) return quotient;
  return __fma_rn(__fma_rn(-quotient, b, a), reciprocal, quotient);
}

// Penalties on a token of which `count` says how often it was seen; in double, as the reference.
inline float penalized(float value, u32 count, const Row& row) {
  const float largest = 3.402823466e38f;
  if (row.repetition != 1.0 && fabsf(value) <= largest) {
    const double wide = value;
    const double scaled = value > 0.0f ? divide(wide, row.repetition, row.inverse_repetition)
                                       : __dmul_rn(wide, row.repetition);
    value = __double2float_rn(fmin(fmax(scaled, -double(largest)), double(largest)));
  }
  const u32 generated = count & kMostCounted;
  if (generated == 0) return value;
  const double penalty = __dadd_rn(__dmul_rn(row.frequency, double(generated)), row.presence);
  return __fsub_rn(value, __double2float_rn(penalty));
}

// The element j of an array, bit j alone being set in `which`. A varying index would put the array into memory.
template <typename T, int kEach>
inline T pick(const T (&array)[kEach], u32 which) {
  T found = array[0];
#pragma unroll
  for (int j = 1; j < kEach; ++j) {
    if (which >> j & 1) found = array[j];
  }
  return found;
}

template <typename T, int kEach>
inline void put(T (&array)[kEach], u32 which, T x) {
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (which >> j & 1) array[j] = x;
  }
}

// Thread t of kThreads holds logits t, t + kThreads, ... of it.
template <int kThreads>
struct Slice {
  static constexpr int kEach = kSlice / kThreads;

  float value[kEach];  // -infinity past the end of the row
  int first, vocab;

  // What nothing writes during the launch.
  Slice(const float* logits, int first, int vocab) : first(first), vocab(vocab) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) value[j] = has(j) ? __ldg(logits + token(j)) : -infinity();
  }

  u32 token(int j) const { return first + threadIdx.x + j * kThreads; }
  bool has(int j) const { return j * kThreads < vocab - first - int(threadIdx.x); }
  u32 token_of(u32 which) const { return token(__ffs(which) - 1); }

  // Steps 2 to 5 of the definition, then the mask; what is no sound logit stays none. All threads take part. Bans may
  // come before penalties, which leave -infinity as it is. stage: shared memory for the slice.
  void adjust(const Row& row, const Tables& tables, float* stage) {
    const int bans = row.position < row.min_tokens ? row.bans : 0;
    if (row.changes + bans > 0) {
      const Change* changes = tables.changes + row.first_change;
#pragma unroll
      for (int j = 0; j < kEach; ++j) stage[j * kThreads + threadIdx.x] = value[j];
      __syncthreads();
      add(stage, changes, row.changes);
      __syncthreads();
      add(stage, changes + row.changes, bans);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kEach; ++j) value[j] = stage[j * kThreads + threadIdx.x];
    }
    if (row.history >= 0) penalize(row, tables.counts + row.history * count_stride(vocab));
    if (row.mask >= 0) forbid(tables.masks + i64(row.mask) * ((vocab + 31) / 32));
  }

 private:
  // Those of `count` changes, ascending by token, that fall into the slice. A token's first makes all of its own.
  void add(float* stage, const Change* changes, int count) const {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const int token = changes[i].token;
      if (u32(token - first) >= kSlice || (i > 0 && changes[i - 1].token == token)) continue;
      float x = stage[token - first];
      for (int k = i; k < count && changes[k].token == token; ++k) x = __fadd_rn(x, changes[k].addend);
      stage[token - first] = x;
    }
  }

  void penalize(const Row& row, const u16* counts) {
    u32 seen = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (has(j) && counts[token(j)] != 0) seen |= 1u << j;
    }
    // Few are: a loop over them keeps one copy of the arithmetic.
#pragma unroll 1
    for (; seen != 0; seen &= seen - 1) {
      const u32 which = seen & -seen;
      put(value, which, penalized(pick(value, which), counts[token_of(which)], row));
    }
  }

  void forbid(const u32* mask) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!has(j) || !(value[j] < infinity())) continue;
      if (!(mask[token(j) / 32] >> token(j) % 32 & 1)) value[j] = -infinity();
    }
  }
};
