// All kernels, compiled for the CPU that the including file is compiled for, as one table.
#pragma once

#include "attention.hpp"
#include "gated_linear.hpp"
#include "level.hpp"
#include "linear.hpp"
#include "passes.hpp"
#include "rows.hpp"

namespace pilotlight {
namespace {

constexpr Level level_of(const char* name) {
    return {name,           embed,     norm,   linear, gated_linear,
            rope_and_cache, attention, gather, {largest_of, index_of, maxima, mass, at_least, contenders}};
}

}  // namespace
}  // namespace pilotlight
