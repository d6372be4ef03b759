// Memory primitives: 16-byte loads and stores with cache hints, and asynchronous copies into shared memory.
//
// Kept apart because the choice between them is part of a kernel's contract: a read-only load must never see a byte
// that the same launch writes.
#pragma once
#include "types.cuh"

// What this launch may also write. `from` is 16-byte aligned, here and below.
inline Vec load(const void* from) {
  Vec v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
               : "l"(from)
               : "memory");
  return v;
}

// What nothing writes during the launch, and other blocks read again: through the L1 cache. Not `valid`, it reads nothing
// and gives zeros; so does load_stream.
inline Vec load_constant(const void* from, bool valid = true) {
  Vec v;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "=&r"(v.pair[0]), "=&r"(v.pair[1]), "=&r"(v.pair[2]), "=&r"(v.pair[3])
      : "l"(from), "r"(u32(valid)));
  return v;
}

// What nothing writes during the launch and this block reads once, such as weights: past the L1 cache.
inline Vec load_stream(const void* from, bool valid = true) {
  Vec v;
  asm volatile(
      "{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
      "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "=&r"(v.pair[0]), "=&r"(v.pair[1]), "=&r"(v.pair[2]), "=&r"(v.pair[3])
      : "l"(from), "r"(u32(valid)));
  return v;
}

// Adds 8 fp32 numbers of what a split linear left, which nothing writes during the launch.
inline void add_part(float (&sum)[8], const float* from) {
  const Vec low = load_constant(from);
  const Vec high = load_constant(from + 4);  // of the same sectors: from L1
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sum[j] += __uint_as_float(low.pair[j]);
    sum[j + 4] += __uint_as_float(high.pair[j]);
  }
}

inline void store(void* to, const Vec& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.pair[0]), "r"(v.pair[1]), "r"(v.pair[2]),
               "r"(v.pair[3])
               : "memory");
}

inline u32 shared_address(const void* pointer) { return u32(__cvta_generic_to_shared(pointer)); }

// Copies 16 bytes from global to shared memory past the registers and L1; with `valid` false it reads nothing and fills
// with zeros. Lands at the latest when the issuing thread's wait_copies returns; other threads see it after a barrier.
inline void copy_async(u32 to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// Closes the group of copies issued since the last one.
inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's newest groups are on their way.
template <int kPending>
inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
