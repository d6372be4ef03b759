// Tensor-core primitives: mma.sync m16n8k16 with fp32 accumulation, and ldmatrix.
//
// Which lane holds what, with g = lane / 4 and t = lane % 4 (g 0..7, t 0..3):
//
//   a[16 x 16], row-major            b[16 x 8], "col": by n, then k      c, d[16 x 8] in fp32
//   a[0]: row g,     k 2t, 2t+1      b[0]: k 2t, 2t+1,   column g        d[0], d[1]: row g,     columns 2t, 2t+1
//   a[1]: row g + 8, k 2t, 2t+1      b[1]: k 2t+8, 2t+9, column g        d[2], d[3]: row g + 8, columns 2t, 2t+1
//   a[2]: row g,     k 2t+8, 2t+9
//   a[3]: row g + 8, k 2t+8, 2t+9
//
// A sum over k does not care which k is where, as long as a and b agree: kernels use that to load 16 bytes a lane.
#pragma once
#include "types.cuh"

// d += a * b
template <typename T>
inline void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);

template <>
inline void mma<Bf16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
inline void mma<F16>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of halves: lanes 8i .. 8i+7 give the addresses (in shared memory) of the rows of matrix i; lane
// (g, t) gets of each the elements 2t and 2t+1 of row g.
inline void load_matrix(u32 (&out)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The same of the transposed matrices: lane (g, t) gets the elements g of rows 2t and 2t+1.
inline void load_matrix_transposed(u32 (&out)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
