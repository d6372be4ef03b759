// Handlers over lanes: an operation on values becomes one on registers. r[0] is the destination, r[1].. the sources.
#pragma once
#include "decode.hpp"
#include "warp.hpp"

namespace soft {

// D = F(S, ...) in each lane of the mask.
template <class D, class S, auto F>
void map1(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(F(a[lane])); });
}

template <class D, class S, auto F>
void map2(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  const S* b = warp.reg<S>(i.r[2]);
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(F(a[lane], b[lane])); });
}

template <class D, class S, auto F>
void map3(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  const S* b = warp.reg<S>(i.r[2]);
  const S* c = warp.reg<S>(i.r[3]);
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(F(a[lane], b[lane], c[lane])); });
}

// A shift: the amount is always 32 bits wide.
template <class T, auto F>
void map_shift(Warp& warp, const Instruction& i, uint32_t mask) {
  const T* a = warp.reg<T>(i.r[1]);
  const uint32_t* b = warp.reg<uint32_t>(i.r[2]);
  for_lanes(warp.reg<T>(i.r[0]), mask, [&](int lane) { return T(F(a[lane], b[lane])); });
}

// The multiply and mad families whose result is twice as wide.
template <class D, class S>
void mul_wide(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  const S* b = warp.reg<S>(i.r[2]);
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(D(a[lane]) * D(b[lane])); });
}

template <class D, class S>
void mad_wide(Warp& warp, const Instruction& i, uint32_t mask) {
  const S* a = warp.reg<S>(i.r[1]);
  const S* b = warp.reg<S>(i.r[2]);
  const D* c = warp.reg<D>(i.r[3]);
  using U = std::make_unsigned_t<D>;
  for_lanes(warp.reg<D>(i.r[0]), mask, [&](int lane) { return D(U(D(a[lane]) * D(b[lane])) + U(c[lane])); });
}

inline void write_predicate(Warp& warp, int32_t reg, uint32_t mask, uint32_t value) {
  uint32_t& to = warp.predicate(reg);
  to = (to & ~mask) | (value & mask);
}

inline uint32_t read_predicate(const Warp& warp, int32_t reg, bool negated) {
  return negated ? ~warp.predicate(reg) : warp.predicate(reg);
}

// The member for an integer type of a family that is templated on the C++ type.
template <template <class> class Family>
Handler by_integer_type(Type type) {
  switch (type) {
    case Type::U16: return Family<uint16_t>::run;
    case Type::U32: return Family<uint32_t>::run;
    case Type::U64: return Family<uint64_t>::run;
    case Type::S16: return Family<int16_t>::run;
    case Type::S32: return Family<int32_t>::run;
    case Type::S64: return Family<int64_t>::run;
    default: return nullptr;
  }
}

template <template <class> class Family>
Handler by_bits_type(Type type) {
  switch (width_of(type)) {
    case 2: return Family<uint16_t>::run;
    case 4: return Family<uint32_t>::run;
    case 8: return Family<uint64_t>::run;
    default: return nullptr;
  }
}

// The correctly rounded forms that approximate opcodes have too, and the fma that a mul and an add contract to.
enum class Round : uint8_t;
Handler float_operation(Type type, const std::string& name, Round round, bool ftz, bool sat);
uint32_t half_fma(bool brain, uint32_t a, uint32_t b, uint32_t c, uint8_t flags);  // of both elements (exec_half.cpp)
}  // namespace soft
