"""Random programs: one text that is a kernel to NVRTC and a function over all threads to the host's C++ compiler.

A program is a few phases of a thread's own doing, with nested branches, loops and switches, and an exchange between
the lanes of a warp after each. It avoids what C++ leaves open: overflow is of unsigned, shifts are masked, divisors
are not zero, and floats become integers within bounds.
"""

import random

WARPS = 2  # of a block, which is the whole grid

PRELUDE = """
#ifdef __CUDACC_RTC__
#define OF_THREAD static __device__ __forceinline__
#else
#include <cmath>
#include <cstring>
#define OF_THREAD static inline
#endif
typedef unsigned u32;
typedef unsigned long long u64;

struct State { u32 a, b, c; u64 l; float x, y; double d; };

OF_THREAD int to_int(double x) { return x > -1e6 && x < 1e6 ? int(x) : 77; }
OF_THREAD u64 bits(float x) { u32 r; memcpy(&r, &x, 4); return x == x ? r : 1; }
OF_THREAD u64 bits(double x) { u64 r; memcpy(&r, &x, 8); return x == x ? r : 1; }
OF_THREAD void begin(State& s, u32 n) {
  s.a = n * 2654435761u; s.b = n; s.c = s.a >> 15 ^ n; s.l = u64(s.a) << 20 | s.c;
  s.x = float(int(s.a)) * 0x1p-28f; s.y = float(n) - 31.5f; s.d = double(s.x) / 3;
}
OF_THREAD u64 end(const State& s) {
  u64 h = s.a;
  h = h * 1099511628211u ^ s.b; h = h * 1099511628211u ^ s.c; h = h * 1099511628211u ^ s.l;
  h = h * 1099511628211u ^ bits(s.x); h = h * 1099511628211u ^ bits(s.y); h = h * 1099511628211u ^ bits(s.d);
  return h;
}
"""

DEVICE = """
extern "C" __global__ void program{n}(u64* out) {{
  State s;
  begin(s, threadIdx.x);
  const u32 lane = threadIdx.x % 32;
  {steps}
  out[threadIdx.x] = end(s);
}}
"""

HOST = """
extern "C" void program{n}(u64* out) {{
  static State all[{threads}];
  for (u32 t = 0; t < {threads}; ++t) begin(all[t], t);
  {steps}
  for (u32 t = 0; t < {threads}; ++t) out[t] = end(all[t]);
}}
"""

# What a phase is followed by: on a card, and to the host for the warp whose first State is `w`.
EXCHANGES = [
    ("s.a = __shfl_xor_sync(~0u, s.b, {k});",
     "State o[32]; memcpy(o, w, sizeof o); for (u32 i = 0; i < 32; ++i) w[i].a = o[i ^ {k}].b;"),
    ("s.b = __ballot_sync(~0u, s.a & 1);",
     "u32 m = 0; for (u32 i = 0; i < 32; ++i) m |= (w[i].a & 1) << i; for (u32 i = 0; i < 32; ++i) w[i].b = m;"),
    ("{{ const u32 o = __shfl_up_sync(~0u, s.c, {k}); if (lane >= {k}) s.c += o; }}",
     "State o[32]; memcpy(o, w, sizeof o); for (u32 i = {k}; i < 32; ++i) w[i].c += o[i - {k}].c;"),
    ("s.c += __reduce_xor_sync(~0u, s.a);",
     "u32 m = 0; for (u32 i = 0; i < 32; ++i) m ^= w[i].a; for (u32 i = 0; i < 32; ++i) w[i].c += m;"),
    ("s.b ^= __match_any_sync(~0u, s.a % {k});",
     "for (u32 i = 0; i < 32; ++i) for (u32 j = 0; j < 32; ++j)"
     " w[i].b ^= u32(w[i].a % {k} == w[j].a % {k}) << j;"),
    ("s.x = __shfl_down_sync(~0u, s.x, {k});",
     "State o[32]; memcpy(o, w, sizeof o); for (u32 i = 0; i + {k} < 32; ++i) w[i].x = o[i + {k}].x;"),
]  # fmt: skip


class Program:
    """Source text from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def whole(self, depth: int = 0) -> str:
        """A u32."""
        pick = self.random.choice
        if depth > 3 or self.random.random() < 0.2:
            return pick(["s.a", "s.b", "s.c", "u32(s.l)", "u32(s.l >> 32)", str(self.random.randrange(1 << 32)) + "u",
                         str(self.random.randrange(40)) + "u"])  # fmt: skip
        a, b = self.whole(depth + 1), self.whole(depth + 1)
        return pick([
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} & {b})", f"({a} | {b})", f"({a} ^ {b})",
            f"({a} << ({b} & 31))", f"({a} >> ({b} & 31))", f"u32(int({a}) >> ({b} & 31))", f"({a} / ({b} | 1))",
            f"({a} % ({b} | 1))", f"u32(int({a}) / int({b} & 1023 | 1))", f"u32(int({a}) % int({b} & 1023 | 3))",
            f"u32(u64({a}) * {b} >> 32)", f"({a} < {b} ? {a} : {b})", f"(int({a}) > int({b}) ? {a} : {b})", f"(~{a})",
            f"u32(short({a}))", f"u32((signed char)({a}))", f"({a} & 0xffff)", f"u32(to_int({self.real(depth + 1)}))",
            f"({a} << 7 | {a} >> 25)", f"u32({self.truth(depth + 1)})",
        ])  # fmt: skip

    def real(self, depth: int = 0) -> str:
        """A float or a double."""
        pick = self.random.choice
        if depth > 3 or self.random.random() < 0.25:
            return pick(["s.x", "s.y", "s.d", "0.375f", "-3.0f", "1.1", "float(int(s.a))", "float(s.l)",
                         "double(int(s.c))", "float(short(s.b))"])  # fmt: skip
        a, b = self.real(depth + 1), self.real(depth + 1)
        return pick([f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / {b})", f"(- {a})",
                     f"({a} < {b} ? {a} : {b})", f"float({a})",
                     f"({self.truth(depth + 1)} ? {a} : {b})"])  # fmt: skip

    def truth(self, depth: int = 0) -> str:
        pick = self.random.choice
        if self.random.random() < 0.3:
            order = pick(["<", "<=", ">", ">=", "==", "!="])
            return f"({self.real(depth + 1)} {order} {self.real(depth + 1)})"
        a, b = self.whole(depth + 1), self.whole(depth + 1)
        return pick([f"({a} < {b})", f"(int({a}) <= int({b}))", f"({a} % 3 == 1)", f"(({a} & 4) != 0)",
                     f"(u64({a}) * 5 > s.l)"])  # fmt: skip

    def assignment(self) -> str:
        return self.random.choice([
            f"s.a = {self.whole()};", f"s.b += {self.whole()};", f"s.c ^= {self.whole()};",
            f"s.l = s.l * {self.random.randrange(1, 1 << 40) | 1}u + {self.whole()};",
            f"s.l ^= u64({self.whole()}) << 17;", f"s.l = s.l / ({self.whole()} | 1u) + s.a;",
            f"s.x = float({self.real()});", f"s.y = float({self.real()});", f"s.d = {self.real()};",
        ])  # fmt: skip

    def block(self, depth: int, inside_loop: bool) -> str:
        lines = [self.statement(depth, inside_loop) for _ in range(self.random.randint(1, 3))]
        return "{ " + "\n".join(lines) + " }"

    def statement(self, depth: int, inside_loop: bool) -> str:
        kind = self.random.random()
        if depth > 3 or kind < 0.4:
            return self.assignment()
        if kind < 0.6:
            other = f" else {self.block(depth + 1, inside_loop)}" if self.random.random() < 0.6 else ""
            return f"if ({self.truth()}) {self.block(depth + 1, inside_loop)}{other}"
        if kind < 0.75:
            self.names += 1
            count = f"({self.whole(2)} % {self.random.randint(2, 9)})"
            body = self.block(depth + 1, True)
            return f"for (u32 n{self.names} = 0, e = {count}; n{self.names} < e; ++n{self.names}) {body}"
        if kind < 0.85:
            cases = "\n".join(
                f"case {n}: {self.assignment()} {'break;' if self.random.random() < 0.8 else ''}" for n in range(6)
            )
            return f"switch ({self.whole(2)} % 7) {{ {cases} default: {self.assignment()} }}"
        if kind < 0.9:
            self.names += 1
            name = f"t{self.names}"
            return (f"{{ u32 {name}[4] = {{s.a, s.b, s.c, 9}}; {name}[{self.whole(2)} & 3] += {self.whole(2)};"
                    f" s.c = {name}[s.a & 3]; }}")  # fmt: skip
        if inside_loop:
            return f"if ({self.truth(2)}) {self.random.choice(['break;', 'continue;'])}"
        return f"if ({self.truth(2)}) return;"

    def phases(self, n: int) -> tuple[str, str, str]:
        """The phases' functions, the kernel's steps and the host's."""
        functions, device, host = "", "", ""
        for p in range(3):
            functions += f"OF_THREAD void p{n}_{p}(State& s) {self.block(0, False)}\n"
            card, plain = self.random.choice(EXCHANGES)
            k = self.random.randint(1, 15)
            device += f"p{n}_{p}(s);\n  {card.format(k=k)}\n  "
            host += f"for (u32 t = 0; t < {32 * WARPS}; ++t) p{n}_{p}(all[t]);\n  "
            host += f"for (State* w = all; w < all + {32 * WARPS}; w += 32) {{ {plain.format(k=k)} }}\n  "
        return functions, device, host


def source(count: int, seed: int) -> str:
    text = PRELUDE
    for n in range(count):
        functions, device, host = Program(seed * 1000 + n).phases(n)
        text += functions + "#ifdef __CUDACC_RTC__" + DEVICE.format(n=n, steps=device)
        text += "#else" + HOST.format(n=n, steps=host, threads=32 * WARPS) + "#endif\n"
    return text
