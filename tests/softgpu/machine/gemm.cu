// The GEMM of test_speed.py: C[M, N] = A[M, K] * B[N, K]^T in bf16 with fp32 accumulation; 64 x 64 tiles, four warps,
// three stages of cp.async. Compiled once into gemm.ptx: nvrtc 12.8 --gpu-architecture=compute_80, .version lowered to 7.4.
typedef unsigned int u32;
typedef unsigned short u16;

constexpr int kTile = 64, kDepth = 32, kStages = 3, kRow = kDepth + 8;  // elements; 8 of padding keep ldmatrix free of conflicts

__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ void copy16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ void load_matrix(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128) gemm(const u16* a, const u16* b, float* c, int m, int n, int k) {
  __shared__ __align__(16) u16 tiles[kStages][2][kTile * kRow];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* sources[2] = {a + size_t(blockIdx.y) * kTile * k, b + size_t(blockIdx.x) * kTile * k};
  auto fetch = [&](int stage, int at) {
    for (int which = 0; which < 2; ++which) {
      for (int i = threadIdx.x; i < kTile * kDepth / 8; i += 128) {
        const int row = i / (kDepth / 8), column = i % (kDepth / 8) * 8;
        copy16(shared_address(&tiles[stage][which][row * kRow + column]), sources[which] + size_t(row) * k + at + column);
      }
    }
  };
  const int steps = k / kDepth;
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fetch(s, s * kDepth);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float sums[2][4][4] = {};
  const int row0 = warp / 2 * 32, column0 = warp % 2 * 32;
  for (int step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < steps) fetch(next % kStages, next * kDepth);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const u16* tile_a = tiles[step % kStages][0];
    const u16* tile_b = tiles[step % kStages][1];
#pragma unroll
    for (int kk = 0; kk < kDepth; kk += 16) {
      u32 fa[2][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_matrix(fa[i], shared_address(&tile_a[(row0 + i * 16 + lane % 16) * kRow + kk + lane / 16 * 8]));
#pragma unroll
      for (int j = 0; j < 2; ++j) load_matrix(fb[j], shared_address(&tile_b[(column0 + j * 16 + lane % 16) * kRow + kk + lane / 16 * 8]));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply(sums[i][j], fa[i], fb[j / 2][j % 2], fb[j / 2][j % 2 + 2]);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = blockIdx.y * kTile + row0 + i * 16 + lane / 4, column = blockIdx.x * kTile + column0 + j * 8 + lane % 4 * 2;
      float2* to = reinterpret_cast<float2*>(c + size_t(row) * n + column);
      to[0] = make_float2(sums[i][j][0], sums[i][j][1]);
      to[4 * size_t(n)] = make_float2(sums[i][j][2], sums[i][j][3]);
    }
  }
}
