// CPUID and XCR0, as Intel's Software Developer's Manual has them (volume 2, CPUID; volume 1, 13.3).
#include "features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pilotlight {

#if defined(__x86_64__)

namespace {

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;

    Registers(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
};

bool all(unsigned word, unsigned bits) { return (word & bits) == bits; }

// The registers that the system saves when it changes threads.
unsigned saved_registers() {
    unsigned low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

}  // namespace

Features Features::of_this_cpu() {
    constexpr unsigned kOsxsave = 1u << 27, kFma = 1u << 12, kF16c = 1u << 29;  // leaf 1, ECX
    constexpr unsigned kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;  // leaf 7, EBX
    constexpr unsigned kVnni = 1u << 11;  // leaf 7, ECX
    constexpr unsigned kBf16 = 1u << 5;  // leaf 7, subleaf 1, EAX
    constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // of XCR0
    Features features{};
    const Registers basic(1, 0), extended(7, 0), more(7, 1);
    if (!all(basic.c, kOsxsave)) {
        return features;
    }
    const unsigned saved = saved_registers();
    features.avx2 = all(saved, kYmm) && all(basic.c, kFma | kF16c) && all(extended.b, kAvx2);
    features.avx512 = features.avx2 && all(saved, kZmm) && all(extended.b, kF | kDq | kBw | kVl);
    features.avx512_bf16 = features.avx512 && all(extended.c, kVnni) && all(more.a, kBf16);
    return features;
}

#else

Features Features::of_this_cpu() { return {}; }

#endif

}  // namespace pilotlight
