// Sampling and scoring: app/device/sampling.py is the definition, step by step; a piece of work is a row.
// Compiled for any CPU: what takes time is in the level's passes, and the standard library's code in no level's file.
#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "limits.hpp"
#include "random.hpp"

namespace pilotlight {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr double kNear = 6;  // nats below the likeliest token, within which a token contends in any draw
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t padded(int64_t vocab) { return (vocab + 15) / 16 * 16; }

// A thread's scratch: three arrays of the vocabulary's size.
struct Scratch {
    float* raw;  // logits as they came
    float* kept;
    int32_t* ids;

    Scratch(void* base, int thread, int vocab) {
        raw = static_cast<float*>(base) + 3 * padded(vocab) * thread;
        kept = raw + padded(vocab);
        ids = reinterpret_cast<int32_t*>(kept + padded(vocab));
    }
};

// Of random bits, as device/random.py makes it.
double exponential(uint64_t bits) { return -std::log1p(-((static_cast<double>(bits >> 12) + 0.5) * 0x1p-52)); }

// One row of logits.
struct Row {
    const Passes& passes;
    float* values;
    int vocab;
    Scratch scratch;

    // Ids of the `count` largest values among the first of `ids`, and of all their equals: how many.
    int find_largest(const float* from, int count, int32_t* ids) const {
        // The count-th largest of the groups' maxima is no larger than the count-th largest value.
        const int groups = (vocab + kMaximaOf - 1) / kMaximaOf;
        float bound = -kInfinity;
        if (count <= groups) {
            passes.maxima(from, vocab, scratch.kept);
            std::nth_element(scratch.kept, scratch.kept + count - 1, scratch.kept + groups, std::greater<>());
            bound = scratch.kept[count - 1];
        }
        return passes.at_least(from, vocab, bound, ids);
    }

    void adjust(const PlSampleRow& row);
    int draw(float largest, const PlSampleRow& row) const;
    float threshold(float largest, const PlSampleRow& row) const;
    float nucleus(int count, float largest, const PlSampleRow& row) const;
    int race(int count, float largest, const PlSampleRow& row) const;
    void logprob(const float* from, int token, int top, double* out, int32_t* top_tokens, double* top_out) const;
};

bool is_adjusted(const PlSampleRow& row) {
    return row.num_biased > 0 || row.repetition_penalty != 1 || row.num_banned > 0 || row.mask ||
           (row.num_output > 0 && (row.frequency_penalty != 0 || row.presence_penalty != 0));
}

// Steps 2 to 5. Counts are kept in scratch, in the places of the tokens concerned alone.
void Row::adjust(const PlSampleRow& row) {
    const auto is_token = [this](int32_t token) { return token >= 0 && token < vocab; };
    int32_t* const counts = scratch.ids;
    for (int i = 0; i < row.num_biased; ++i) {
        if (is_token(row.biased[i])) {
            values[row.biased[i]] += row.bias[i];
        }
    }
    if (row.repetition_penalty != 1) {
        for (int i = 0; i < row.num_context; ++i) {
            if (is_token(row.context[i])) {
                counts[row.context[i]] = 1;
            }
        }
        for (int i = 0; i < row.num_context; ++i) {
            const int32_t token = row.context[i];
            if (!is_token(token) || !counts[token]) {
                continue;
            }
            counts[token] = 0;
            const double value = values[token], factor = row.repetition_penalty;
            if (!std::isinf(value)) {
                const double scaled = value > 0 ? value / factor : value * factor;
                values[token] = static_cast<float>(std::clamp<double>(scaled, -kLargest, kLargest));
            }
        }
    }
    if (row.frequency_penalty != 0 || row.presence_penalty != 0) {
        for (int i = 0; i < row.num_output; ++i) {
            if (is_token(row.output[i])) {
                counts[row.output[i]] = 0;
            }
        }
        for (int i = 0; i < row.num_output; ++i) {
            if (is_token(row.output[i])) {
                ++counts[row.output[i]];
            }
        }
        for (int i = 0; i < row.num_output; ++i) {
            const int32_t token = row.output[i];
            if (is_token(token) && counts[token]) {
                values[token] -= static_cast<float>(row.frequency_penalty * counts[token] + row.presence_penalty);
                counts[token] = 0;
            }
        }
    }
    for (int i = 0; i < row.num_banned; ++i) {
        if (is_token(row.banned[i])) {
            values[row.banned[i]] = -kInfinity;
        }
    }
    if (row.mask) {
        for (int first = 0; first < vocab; first += 32) {
            const uint32_t word = first / 32 < row.num_mask ? row.mask[first / 32] : 0;
            for (int i = 0; word != 0xffffffff && i < 32 && first + i < vocab; ++i) {
                if (!(word >> i & 1)) {
                    values[first + i] = -kInfinity;
                }
            }
        }
    }
}

// Steps 6 to 8; `largest` is the largest of the values.
int Row::draw(float largest, const PlSampleRow& row) const {
    const bool is_filtered = (row.top_k > 0 && row.top_k < vocab) || row.top_p < 1 || row.min_p > 0;
    if (is_filtered) {
        const float least = threshold(largest, row);
        return race(passes.at_least(values, vocab, least, scratch.ids), largest, row);
    }
    // The likeliest token scores -log(e_best). One that is more than `gap` below it scores less than -gap - log(e), so
    // it wins only with e < e_best * exp(-gap); and since u < e, comparing integers leaves a few hundred contenders.
    const uint64_t stream = nth(row.key, static_cast<uint64_t>(row.position));
    const int best = passes.index_of(values, vocab, largest);
    const float cut = largest - static_cast<float>(kNear * row.temperature);
    const double gap = (static_cast<double>(largest) - static_cast<double>(cut)) / row.temperature;
    const double bound = exponential(nth(stream, static_cast<uint64_t>(best))) * std::exp(-gap);
    const double limit = bound * 1.001 * 0x1p64 + 4096;  // a little more than exact, to be above any rounding
    const uint64_t bits = limit < 0x1p64 ? static_cast<uint64_t>(limit) : ~uint64_t{0};
    return race(passes.contenders(values, vocab, cut, stream, bits, scratch.ids), largest, row);
}

// The least value that top-k, top-p and min-p keep.
float Row::threshold(float largest, const PlSampleRow& row) const {
    float least = -kInfinity;
    int count = vocab;
    const bool has_top_k = row.top_k > 0 && row.top_k < vocab;
    if (has_top_k) {
        count = find_largest(values, row.top_k, scratch.ids);
        for (int i = 0; i < count; ++i) {
            scratch.kept[i] = values[scratch.ids[i]];
        }
        std::nth_element(scratch.kept, scratch.kept + row.top_k - 1, scratch.kept + count, std::greater<>());
        least = scratch.kept[row.top_k - 1];
    }
    if (row.top_p < 1) {
        count = 0;
        for (int i = 0; i < vocab; ++i) {
            scratch.kept[count] = values[i];
            count += values[i] >= least;
        }
        least = nucleus(count, largest, row);
    }
    if (row.min_p > 0) {
        least = std::max(least, largest + static_cast<float>(row.temperature * std::log(row.min_p)));
    }
    return least;
}

// The least logit of the smallest set of likeliest tokens whose mass reaches top_p of all `count` values in kept.
float Row::nucleus(int count, float largest, const PlSampleRow& row) const {
    const float temperature = static_cast<float>(row.temperature);
    const double wanted = row.top_p * passes.mass(scratch.kept, count, largest, temperature);
    // What has to be sorted is a few hundred tokens as a rule, not the vocabulary.
    for (const float depth : {4.0f, 10.0f, kInfinity}) {
        float* const end = std::partition(scratch.kept, scratch.kept + count, [&](float value) {
            return (largest - value) / temperature <= depth;
        });
        std::sort(scratch.kept, end, std::greater<>());
        double reached = 0;
        for (const float* value = scratch.kept; value < end; ++value) {
            reached += std::exp((*value - largest) / temperature);
            if (reached >= wanted) {
                return *value;
            }
        }
        if (depth == kInfinity && end > scratch.kept) {
            return end[-1];
        }
    }
    return largest;
}

// Step 8 among the first `count` ids in scratch, ascending: the lowest of equals.
int Row::race(int count, float largest, const PlSampleRow& row) const {
    const uint64_t stream = nth(row.key, static_cast<uint64_t>(row.position));
    double most = -std::numeric_limits<double>::infinity();
    int winner = scratch.ids[0];
    for (int i = 0; i < count; ++i) {
        const int id = scratch.ids[i];
        const double likelihood = (static_cast<double>(values[id]) - static_cast<double>(largest)) / row.temperature;
        const double result = likelihood - std::log(exponential(nth(stream, static_cast<uint64_t>(id))));
        if (result > most) {
            most = result;
            winner = id;
        }
    }
    return winner;
}

// Of `token` and of the `top` likeliest under the softmax of `from`, best first, the lowest id first of equals.
void Row::logprob(const float* from, int token, int top, double* out, int32_t* top_tokens, double* top_out) const {
    top = std::min(top, vocab);
    const float largest = passes.largest(from, vocab);
    if (!std::isfinite(largest)) {
        *out = std::numeric_limits<double>::quiet_NaN();
        std::fill_n(top_tokens, std::max(top, 0), -1);
        std::fill_n(top_out, std::max(top, 0), *out);
        return;
    }
    const double normalizer = static_cast<double>(largest) + std::log(passes.mass(from, vocab, largest, 1));
    *out = static_cast<double>(from[token]) - normalizer;
    if (top <= 0) {
        return;
    }
    const int count = find_largest(from, top, scratch.ids);
    std::partial_sort(scratch.ids, scratch.ids + top, scratch.ids + count, [from](int32_t a, int32_t b) {
        return from[a] != from[b] ? from[a] > from[b] : a < b;
    });
    for (int i = 0; i < top; ++i) {
        top_tokens[i] = scratch.ids[i];
        top_out[i] = static_cast<double>(from[scratch.ids[i]]) - normalizer;
    }
}

}  // namespace

int64_t sample_bytes(int threads, int vocab) {
    return 3 * padded(vocab) * threads * static_cast<int64_t>(sizeof(float));
}

void sample(Team& team, const Passes& passes, const PlSample& op) {
    team.each(*op.rows, [&](int index, int thread) {
        const PlSampleRow& parameters = op.parameters[index];
        const int64_t top = static_cast<int64_t>(index) * op.most_top;
        float* const values = op.logits + static_cast<int64_t>(index) * op.vocab;
        Row row{passes, values, op.vocab, Scratch(op.scratch, thread, op.vocab)};
        op.tokens[index] = -1;
        float largest = passes.largest(values, op.vocab);
        if (!std::isfinite(largest)) {
            return;
        }
        const float* raw = values;
        if (is_adjusted(parameters)) {
            if (parameters.logprobs >= 0) {
                std::copy_n(row.values, op.vocab, row.scratch.raw);
                raw = row.scratch.raw;
            }
            row.adjust(parameters);
            largest = passes.largest(row.values, op.vocab);
            if (!std::isfinite(largest)) {
                return;
            }
        }
        const int token = parameters.temperature < kGreedyBelow ? passes.index_of(row.values, op.vocab, largest)
                                                                : row.draw(largest, parameters);
        op.tokens[index] = token;
        if (parameters.logprobs >= 0) {
            row.logprob(raw, token, parameters.logprobs, op.logprobs + index, op.top_tokens + top,
                        op.top_logprobs + top);
        }
    });
}

void score(Team& team, const Passes& passes, const PlScore& op) {
    team.each(*op.rows, [&](int index, int thread) {
        const int64_t top = static_cast<int64_t>(index) * op.most_top;
        const float* const values = op.logits + static_cast<int64_t>(index) * op.vocab;
        const Row row{passes, nullptr, op.vocab, Scratch(op.scratch, thread, op.vocab)};
        row.logprob(values, op.targets[index], *op.top, op.logprobs + index, op.top_tokens + top,
                    op.top_logprobs + top);
    });
}

}  // namespace pilotlight
