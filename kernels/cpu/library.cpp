// The functions of abi.h: which level a CPU has, what the ops take, and the walk through a program.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "features.hpp"
#include "level.hpp"
#include "limits.hpp"
#include "pool.hpp"
#include "sample.hpp"

using namespace pilotlight;

#define PL_EXPORT extern "C" __attribute__((visibility("default")))

struct PlPool {
    std::unique_ptr<Pool> pool;
    const Level* level;
};

namespace {

struct Choice {
    const Level* level;
    bool supported;
};

// Best first.
std::vector<Choice> choices() {
#if defined(__x86_64__)
    const Features features = Features::of_this_cpu();
    return {{&level_avx512_bf16, features.avx512_bf16},
            {&level_avx512, features.avx512},
            {&level_avx2, features.avx2},
            {&level_portable, true}};
#else
    return {{&level_portable, true}};
#endif
}

const Level* choose(const char* name) {
    for (const Choice& choice : choices()) {
        if (choice.supported && (!name || std::strcmp(name, choice.level->name) == 0)) {
            return choice.level;
        }
    }
    return nullptr;
}

// A line of text that stays as it is until the thread asks again.
[[gnu::format(printf, 1, 2)]] const char* refuse(const char* format, ...) {
    thread_local char line[160];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return line;
}

const char* check_matrix(const PlMatrix& matrix) {
    if (matrix.type < PL_F32 || matrix.type > PL_I8) {
        return refuse("weights are of type %d, not one of fp32, fp16, bf16 and int8", matrix.type);
    }
    if ((matrix.type == PL_I8) != (matrix.scale != nullptr)) {
        return refuse("int8 weights, and no others, come with a scale for each row");
    }
    if (matrix.rows < 1 || matrix.columns < 1) {
        return refuse("weights are empty: [%d, %d]", matrix.rows, matrix.columns);
    }
    return nullptr;
}

const char* check_cache(const PlCache& cache, int layer) {
    if (cache.type < PL_F32 || cache.type > PL_BF16) {
        return refuse("pages are of type %d, not one of fp32, fp16 and bf16", cache.type);
    }
    if (cache.page_size < 16 || cache.page_size % 16 != 0) {
        return refuse("pages have %d tokens, not a multiple of 16", cache.page_size);
    }
    if (cache.head_dim < 2 || cache.head_dim > kMaxHeadDim || cache.head_dim % 2 != 0) {
        return refuse("heads are of size %d, not even and at most %d", cache.head_dim, kMaxHeadDim);
    }
    if (cache.rotary_dim < 0 || cache.rotary_dim > cache.head_dim || cache.rotary_dim % 2 != 0) {
        return refuse("the rotary part of a head is %d, not even and at most its size, %d", cache.rotary_dim,
                      cache.head_dim);
    }
    if (cache.kv_heads < 1 || cache.heads < 1 || cache.heads % cache.kv_heads != 0) {
        return refuse("there are %d heads, not a multiple of the %d of keys and values", cache.heads, cache.kv_heads);
    }
    if (layer < 0 || layer >= cache.layers) {
        return refuse("layer %d is none of the pages' %d", layer, cache.layers);
    }
    return nullptr;
}

const char* check_gated(const PlMatrix& matrix) {
    if (matrix.rows % 2 != 0) {
        return refuse("a gated layer's weights have %d rows, not gate and up in equal parts", matrix.rows);
    }
    return check_matrix(matrix);
}

void run_op(Team& team, const Level& level, const PlOp& op) {
    switch (op.kind) {
        case PL_EMBED:
            return level.embed(team, op.embed);
        case PL_NORM:
            return level.norm(team, op.norm);
        case PL_LINEAR:
            return level.linear(team, op.linear);
        case PL_GATED_LINEAR:
            return level.gated_linear(team, op.gated_linear);
        case PL_ROPE_AND_CACHE:
            return level.rope_and_cache(team, op.rope_and_cache);
        case PL_ATTENTION:
            return level.attention(team, op.attention);
        case PL_GATHER:
            return level.gather(team, op.gather);
        case PL_SAMPLE:
            return sample(team, level.passes, op.sample);
        default:
            return score(team, level.passes, op.score);
    }
}

}  // namespace

PL_EXPORT int32_t pl_abi() { return PL_ABI; }

PL_EXPORT int32_t pl_op_bytes() { return sizeof(PlOp); }

PL_EXPORT const char* pl_levels() {
    static const std::string names = [] {
        std::string joined;
        for (const Choice& choice : choices()) {
            if (choice.supported) {
                if (!joined.empty()) {
                    joined += ' ';
                }
                joined += choice.level->name;
            }
        }
        return joined;
    }();
    return names.c_str();
}

PL_EXPORT PlPool* pl_open(int32_t threads, const char* level) {
    const Level* const chosen = choose(level);
    if (!chosen) {
        return nullptr;
    }
    std::unique_ptr<Pool> pool = Pool::start(threads);
    return pool ? new PlPool{std::move(pool), chosen} : nullptr;
}

PL_EXPORT void pl_close(PlPool* pool) { delete pool; }

PL_EXPORT int64_t pl_packed_bytes(int32_t rows, int32_t columns) {
    // The widest of the levels': fp32 in blocks of 32, and a scale.
    return static_cast<int64_t>(rows) * ((static_cast<int64_t>(columns) + 31) / 32 * 32 * 4 + 64);
}

PL_EXPORT int64_t pl_attention_bytes(const PlCache* cache, int32_t, int32_t sequences, int32_t max_length) {
    // As attention.hpp lays it out: two numbers for each sequence, and the partial results of its splits.
    const int64_t splits = (static_cast<int64_t>(max_length) + kSplit - 1) / kSplit;
    const int64_t row = (cache->head_dim + 15) / 16 * 16 + 2;
    return 8 * static_cast<int64_t>(sequences) + 128 + splits * sequences * cache->heads * row * 4;
}

PL_EXPORT int64_t pl_sample_bytes(int32_t threads, int32_t vocab) { return sample_bytes(threads, vocab); }

PL_EXPORT const char* pl_check(const PlOp* op) {
    switch (op->kind) {
        case PL_EMBED:
            return check_matrix(op->embed.table);
        case PL_LINEAR:
            return check_matrix(op->linear.weight);
        case PL_GATED_LINEAR:
            return check_gated(op->gated_linear.weight);
        case PL_ROPE_AND_CACHE:
            return check_cache(op->rope_and_cache.cache, op->rope_and_cache.layer);
        case PL_ATTENTION:
            return check_cache(op->attention.cache, op->attention.layer);
        case PL_NORM:
        case PL_GATHER:
        case PL_SAMPLE:
        case PL_SCORE:
            return nullptr;
        default:
            return refuse("ops of kind %d are none of this library's", op->kind);
    }
}

PL_EXPORT void pl_run(PlPool* pool, const PlOp* ops, int32_t count) {
    pool->pool->begin_run();
    for (int32_t i = 0; i < count; ++i) {
        run_op(*pool->pool, *pool->level, ops[i]);
    }
    pool->pool->end_run();
}
