// The passes over a row of logits that level.hpp describes.
// Apart from sampling itself because these alone take time that grows with the vocabulary.
#pragma once

#include "limits.hpp"
#include "random.hpp"
#include "vector.hpp"

namespace pilotlight {
namespace {

inline bool any(Ints flags) {
    uint64_t words[kWidth / 2], joined = 0;
    memcpy(words, &flags, sizeof flags);
    for (const uint64_t word : words) {
        joined |= word;
    }
    return joined != 0;
}

float largest_of(const float* values, int count) {
    Floats most[4];
    Ints unordered = {};
    for (Floats& v : most) {
        v = all(-__builtin_inff());
    }
    int i = 0;
    for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
        for (int j = 0; j < 4; ++j) {
            const Floats v = load<Floats>(values + i + j * kWidth);
            most[j] = larger(v, most[j]);
            unordered |= v != v;
        }
    }
    float result = largest(larger(larger(most[0], most[1]), larger(most[2], most[3])));
    bool nan = any(unordered);
    for (; i < count; ++i) {
        result = values[i] > result ? values[i] : result;
        nan |= values[i] != values[i];
    }
    return nan ? __builtin_nanf("") : result;
}

int index_of(const float* values, int count, float value) {
    int i = 0;
    while (i + kWidth <= count && !any(load<Floats>(values + i) == value)) {
        i += kWidth;
    }
    while (i < count - 1 && values[i] != value) {
        ++i;
    }
    return i;
}

void maxima(const float* values, int count, float* out) {
    int i = 0;
    for (; i + kMaximaOf <= count; i += kMaximaOf) {
        Floats most = all(-__builtin_inff());
        for (int j = 0; j < kMaximaOf; j += kWidth) {
            most = larger(load<Floats>(values + i + j), most);
        }
        out[i / kMaximaOf] = largest(most);
    }
    if (i < count) {
        float most = -__builtin_inff();
        for (int j = i; j < count; ++j) {
            most = values[j] > most ? values[j] : most;
        }
        out[i / kMaximaOf] = most;
    }
}

double mass(const float* values, int count, float largest, float temperature) {
    double total = 0;
    int i = 0;
    for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
        Floats four = {};
        for (int j = 0; j < 4; ++j) {
            four += exponential((load<Floats>(values + i + j * kWidth) - largest) / temperature);
        }
        double lanes[kWidth];
        for (int j = 0; j < kWidth; ++j) {
            lanes[j] = four[j];
        }
        for (int step = kWidth / 2; step > 0; step /= 2) {
            for (int j = 0; j < step; ++j) {
                lanes[j] += lanes[j + step];
            }
        }
        total += lanes[0];
    }
    for (; i < count; ++i) {
        total += exponential(all((values[i] - largest) / temperature))[0];
    }
    return total;
}

int at_least(const float* values, int count, float least, int32_t* out) {
    int found = 0, i = 0;
    for (; i + kWidth <= count; i += kWidth) {
        if (any(load<Floats>(values + i) >= least)) {
            for (int j = i; j < i + kWidth; ++j) {
                out[found] = j;
                found += values[j] >= least;
            }
        }
    }
    for (; i < count; ++i) {
        if (values[i] >= least) {
            out[found++] = i;
        }
    }
    return found;
}

int contenders(const float* values, int count, float least, uint64_t stream, uint64_t limit, int32_t* out) {
    constexpr int step = 32;
    int found = 0;
    for (int i = 0; i < count; i += step) {
        const int end = count - i < step ? count - i : step;
        uint64_t bits[step];
        uint64_t hits = 0;
        for (int j = 0; j < end; ++j) {
            bits[j] = nth(stream, static_cast<uint64_t>(i + j));
            hits |= static_cast<uint64_t>(bits[j] <= limit) | static_cast<uint64_t>(values[i + j] >= least);
        }
        for (int j = 0; hits != 0 && j < end; ++j) {
            if (bits[j] <= limit || values[i + j] >= least) {
                out[found++] = i + j;
            }
        }
    }
    return found;
}

}  // namespace
}  // namespace pilotlight
