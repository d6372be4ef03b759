// Programs as they are written for a card, each right as it stands.
//
// A line that ends in "// needs <rule>" is there for order alone: without it the program is wrong, and the soft GPU
// has to object with that rule (or one of several, with "|" between). One that ends in "// after <rule>" may not
// change places with the line before it.
#define ENTRY extern "C" __global__

constexpr float kLeast = -3e38f;

__device__ unsigned shared_address(const void* pointer) { return unsigned(__cvta_generic_to_shared(pointer)); }

__device__ void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// One warp fills a ring of stages, three take from it. Full barriers are 1.., empty ones behind them.
ENTRY void __launch_bounds__(128) specialised(const int* in, int* out, int rounds) {
  constexpr int kStages = 3, kThreads = 128;
  __shared__ int ring[kStages][96];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  in += blockIdx.x * rounds * 96;
  if (warp == 0) {
    for (int r = 0; r < rounds; ++r) {
      const int stage = r % kStages;
      if (r >= kStages) {
        named_sync(1 + kStages + stage, kThreads);  // needs shared-race|barrier-count
      }
      for (int i = lane; i < 96; i += 32) ring[stage][i] = in[r * 96 + i];
      named_arrive(1 + stage, kThreads);  // after shared-race
    }
  } else {
    int sum = 0;
    for (int r = 0; r < rounds; ++r) {
      const int stage = r % kStages;
      named_sync(1 + stage, kThreads);
      sum += ring[stage][(threadIdx.x * 7 + r) % 96];
      if (r + kStages < rounds) named_arrive(1 + kStages + stage, kThreads);  // after shared-race
    }
    out[blockIdx.x * 96 + threadIdx.x - 32] = sum;
  }
}

// Partial sums of a split dimension; the last block to finish adds them in a fixed order.
ENTRY void __launch_bounds__(128) split_sum(const float* in, float* partial, float* out, unsigned* count, int n) {
  __shared__ bool last;
  const int splits = gridDim.x;
  float sum = 0;
  for (int i = blockIdx.x; i < n; i += splits) sum = __fadd_rn(sum, in[i * 128 + threadIdx.x]);
  partial[blockIdx.x * 128 + threadIdx.x] = sum;
  __threadfence();  // needs global-race
  __syncthreads();  // needs global-race
  if (threadIdx.x == 0) {
    last = atomicAdd(count, 1) == splits - 1;
    __threadfence();  // needs global-race
  }
  __syncthreads();  // needs shared-race|shared-uninitialised
  if (!last) return;
  sum = 0;
  for (int s = 0; s < splits; ++s) sum = __fadd_rn(sum, partial[s * 128 + threadIdx.x]);
  out[threadIdx.x] = sum;
  if (threadIdx.x == 0) *count = 0;
}

__device__ void copy_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
}

// Two stages of rows, copied while the other is summed; the last row may be short.
ENTRY void __launch_bounds__(64) double_buffered(const int* in, int* out, int rows, int words) {
  __shared__ __align__(16) int stage[2][256];
  const auto fetch = [&](int row) {
    const int first = row * 256 + threadIdx.x * 4;
    const int left = words - first;
    const int bytes = row >= rows || left <= 0 ? 0 : left >= 4 ? 16 : left * 4;
    copy_16(&stage[row % 2][threadIdx.x * 4], in + (bytes ? first : 0), bytes);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  int sum = 0;
  fetch(0);
  for (int row = 0; row < rows; ++row) {
    fetch(row + 1);
    asm volatile("cp.async.wait_group 1;" ::: "memory");  // needs async-unsynchronised|async-overwrites-read|async-pending
    __syncthreads();                                      // needs async-unsynchronised
    for (int i = 0; i < 4; ++i) sum += stage[row % 2][(threadIdx.x * 4 + i * 68) % 256] * (i + 1);
    __syncthreads();  // needs async-overwrites-read|async-unsynchronised
  }
  asm volatile("cp.async.wait_all;" ::: "memory");  // needs async-pending
  out[threadIdx.x] = sum;
}

// Each row's sum by shuffles, one value a warp through shared memory.
ENTRY void __launch_bounds__(256) row_sums(const int* in, long long* out, int width) {
  __shared__ long long parts[8];
  long long sum = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += in[blockIdx.x * width + i];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();  // needs shared-race|shared-uninitialised
  if (threadIdx.x < 32) {
    const int warps = blockDim.x / 32;
    sum = threadIdx.x < warps ? parts[threadIdx.x] : 0;
    for (int step = 4; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
  }
}

// Counts in shared memory, then in global memory; integers, so that the order is nobody's business.
ENTRY void histogram(const unsigned char* in, unsigned* bins, int n) {
  __shared__ unsigned own[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
  __syncthreads();  // needs shared-race|shared-uninitialised
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[in[i]], 1);
  __syncthreads();  // needs shared-race
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    if (own[i]) atomicAdd(&bins[i], own[i]);
  }
}

// A histogram of each block's own in global memory, by atomics that only the block needs to see.
ENTRY void block_histogram(const unsigned char* in, unsigned* bins, unsigned* most, int n) {
  unsigned* own = bins + blockIdx.x * 256;
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd_block(&own[in[blockIdx.x * n + i]], 1);
  __syncthreads();  // needs global-race
  unsigned top = 0;
  for (int i = threadIdx.x; i < 256; i += blockDim.x) top = max(top, own[i]);
  top = __reduce_max_sync(~0u, top);
  if (threadIdx.x % 32 == 0) atomicMax(&most[blockIdx.x], top);
}

// A scan of the whole grid in one pass: each block waits for the one before it.
ENTRY void __launch_bounds__(32) look_back(const unsigned* in, unsigned* out, volatile unsigned* state) {
  unsigned own = in[blockIdx.x * 32 + threadIdx.x];
  for (int step = 1; step < 32; step *= 2) {
    const unsigned other = __shfl_up_sync(~0u, own, step);
    if (threadIdx.x >= step) own += other;
  }
  const unsigned total = __shfl_sync(~0u, own, 31);
  unsigned before = 0;
  if (threadIdx.x == 0) {
    if (blockIdx.x) {
      unsigned seen;
      while ((seen = state[blockIdx.x - 1]) == 0) {
      }
      before = seen - 1;
    }
    state[blockIdx.x] = before + total + 1;
  }
  before = __shfl_sync(~0u, before, 0);
  out[blockIdx.x * 32 + threadIdx.x] = before + own;
}

// One pass over each row for its greatest value and its mass, a second for the result.
ENTRY void __launch_bounds__(128) online_softmax(const float* in, float* out, int width) {
  __shared__ float maxima[4], masses[4];
  const float* row = in + blockIdx.x * width;
  float top = kLeast, mass = 0;
  const auto merge = [&](float other, float other_mass) {
    const float next = fmaxf(top, other);
    mass = mass * __expf(top - next) + other_mass * __expf(other - next);
    top = next;
  };
  for (int i = threadIdx.x; i < width; i += blockDim.x) merge(row[i], 1);
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(~0u, top, step), other_mass = __shfl_xor_sync(~0u, mass, step);
    merge(other, other_mass);
  }
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = top;
    masses[threadIdx.x / 32] = mass;
  }
  __syncthreads();  // needs shared-race|shared-uninitialised
  top = kLeast;
  mass = 0;
  for (int w = 0; w < 4; ++w) merge(maxima[w], masses[w]);
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[blockIdx.x * width + i] = __expf(row[i] - top) / mass;
}

// Inclusive sums within a block: warps first, then the warps' totals.
ENTRY void __launch_bounds__(256) prefix_sums(const int* in, int* out) {
  __shared__ int totals[8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int value = in[blockIdx.x * 256 + threadIdx.x];
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) totals[warp] = value;
  __syncthreads();  // needs shared-race|shared-uninitialised
  if (warp == 0 && lane < 8) {
    int total = totals[lane];
    for (int step = 1; step < 8; step *= 2) {
      const int other = __shfl_up_sync(0xff, total, step);
      if (lane >= step) total += other;
    }
    totals[lane] = total;
  }
  __syncthreads();  // needs shared-race
  if (warp) value += totals[warp - 1];
  out[blockIdx.x * 256 + threadIdx.x] = value;
}

ENTRY void __launch_bounds__(256) bitonic_sort(int* values) {
  __shared__ int own[512];
  for (int i = threadIdx.x; i < 512; i += 256) own[i] = values[blockIdx.x * 512 + i];
  for (int size = 2; size <= 512; size *= 2) {
    for (int stride = size / 2; stride; stride /= 2) {
      __syncthreads();  // needs shared-race|shared-uninitialised
      const int low = 2 * threadIdx.x - (threadIdx.x & (stride - 1)), high = low + stride;
      const bool up = (low & size) == 0;
      const int a = own[low], b = own[high];
      if ((a > b) == up) {
        own[low] = b;
        own[high] = a;
      }
    }
  }
  __syncthreads();  // needs shared-race
  for (int i = threadIdx.x; i < 512; i += 256) values[blockIdx.x * 512 + i] = own[i];
}

// Those of each warp that pass go to the end of one list, one atomic for all of a warp; then each block is counted.
ENTRY void compact(const int* in, int* out, int* length, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int value = in[i];
  if (value % 3) return;
  const unsigned here = __activemask();
  const int leader = __ffs(here) - 1, lane = threadIdx.x % 32;
  int first = 0;
  if (lane == leader) first = atomicAdd(length, __popc(here));
  first = __shfl_sync(here, first, leader);
  out[first + __popc(here & ((1u << lane) - 1))] = value;
}

// A grid that stays and takes tiles from a counter as it gets to them.
ENTRY void __launch_bounds__(64) work_queue(const int* in, int* out, unsigned* next, unsigned* left, int tiles) {
  __shared__ unsigned tile;
  for (;;) {
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();  // needs shared-race|shared-uninitialised
    const unsigned mine = tile;
    __syncthreads();  // needs shared-race
    if (mine >= tiles) break;
    out[mine * 64 + threadIdx.x] = 3 * in[mine * 64 + threadIdx.x];
  }
  if (threadIdx.x == 0 && atomicAdd(left, 1) == gridDim.x - 1) {
    *left = 0;
    atomicExch(next, 0);
  }
}

// Each warp turns tiles over in its own corner of shared memory.
ENTRY void __launch_bounds__(64) turn(const int* in, int* out, int tiles) {
  __shared__ int corners[2][32][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int(*corner)[33] = corners[warp];
  for (int tile = blockIdx.x * 2 + warp; tile < tiles; tile += gridDim.x * 2) {
    for (int i = 0; i < 32; ++i) corner[i][lane] = in[tile * 1024 + i * 32 + lane];
    __syncwarp();  // needs shared-race
    for (int i = 0; i < 32; ++i) out[tile * 1024 + i * 32 + lane] = corner[lane][i];
    __syncwarp();  // needs shared-race
  }
}

// Peers by value: one atomic for each distinct key of a warp.
ENTRY void count_keys(const int* keys, int* counts, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned members = __ballot_sync(~0u, i < n);
  if (i >= n) return;
  const unsigned peers = __match_any_sync(members, keys[i]);
  if (__ffs(peers) - 1 == threadIdx.x % 32) atomicAdd(&counts[keys[i]], __popc(peers));
}
