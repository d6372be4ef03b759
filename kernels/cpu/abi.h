// What the CPU library offers to its caller: records, and the functions that take them.
// Apart from the code because it is the contract between C++ and Python (app/device/native*.py mirrors it).
//
// A step is a *program*: an array of `PlOp` that is built once and run by one call, as a captured graph is on a GPU.
// All pointers in it are fixed addresses. What changes from step to step is read through them: token ids, positions,
// page numbers, and also every count of rows (`const int32_t* rows`), so one program serves batches of every size that
// its buffers have room for. Nothing is allocated or checked while a program runs.
//
// Activations are fp32 and dense, row by row: [rows, columns]. Weights lie as in the model's file. All sums are fp32
// (integers where the weights are int8) in an order that depends on the op and the CPU's level alone: a row's result is
// the same, bit for bit, whatever other rows are in the batch and however many threads work. Linear layers take fp32 x
// as it is, but for two cases, both bounded in weights.hpp: int8 weights are multiplied by x in 16 bits; and bf16
// weights by x in bf16, at level avx512_bf16.
//
// Alignment: `x`, `out` and every other buffer that the caller allocates: 64 bytes. Weights: that of their elements.
// Buffers of one op must not overlap unless a record says that they may.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PL_ABI 1  // changes with any record or function below

typedef int32_t PlType;
enum { PL_F32 = 0, PL_F16 = 1, PL_BF16 = 2, PL_I8 = 3 };

typedef int32_t PlActivation;
enum { PL_SILU = 0, PL_GELU = 1, PL_GELU_TANH = 2 };

// A weight matrix [rows, columns], row-major and dense. int8: element = data * scale[row].
typedef struct PlMatrix {
    const void* data;
    const float* scale;  // [rows], int8 only; else NULL
    int32_t rows;
    int32_t columns;
    PlType type;
    int32_t padding;  // 0
} PlMatrix;

// K/V of all layers: pages [pages, layers, kv_heads, 2] of tiles, each page_size * head_dim elements: first the keys of
// a head *transposed* [head_dim, page_size], then its values [page_size, head_dim]. So both are read as they lie.
// page_size: a multiple of 16. head_dim: even, at most 256. type: PL_F32, PL_F16 or PL_BF16; fp16 saturates at 65504.
typedef struct PlCache {
    void* pages;
    int32_t layers;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t rotary_dim;  // even, at most head_dim
    int32_t page_size;
    PlType type;
    int32_t padding;
} PlCache;

// out[i] = table[tokens[i]]. A token outside the table counts as its nearest row.
typedef struct PlEmbed {
    const int32_t* rows;  // one count, as everywhere below: T
    const int32_t* tokens;  // [T]
    float* out;  // [T, table.columns]
    PlMatrix table;
} PlEmbed;

// s = x + residual, out = s / sqrt(mean(s^2) + eps) * weight. `s` is left in residual; where that is NULL, s is x.
typedef struct PlNorm {
    const int32_t* rows;
    const float* x;  // [rows, columns]
    float* residual;  // [rows, columns] or NULL; read and written
    const float* weight;  // [columns], fp32 whatever the file has
    float* out;  // [rows, columns]; may be x where there is a residual
    int32_t columns;
    float eps;
} PlNorm;

// out = x times weight transposed, plus bias. Logits are such an op too, without bias.
typedef struct PlLinear {
    const int32_t* rows;
    const float* x;  // [rows, weight.columns]
    const float* bias;  // [weight.rows] or NULL, fp32
    float* out;  // [rows, weight.rows]
    void* packed;  // pl_packed_bytes(most rows, weight.columns): x as the kernel takes it; shared by ops
    PlMatrix weight;
} PlLinear;

// out = activation(x times gate transposed) * (x times up transposed), gate and up being the halves of weight.
typedef struct PlGatedLinear {
    const int32_t* rows;
    const float* x;  // [rows, weight.columns]
    const float* bias;  // [weight.rows] or NULL, fp32
    float* out;  // [rows, weight.rows / 2]
    void* packed;  // as in PlLinear
    PlMatrix weight;  // [2 * out, in]
    PlActivation activation;
    int32_t padding;
} PlGatedLinear;

// Rotates q and k (halves, as GPT-NeoX), writes k and v to the pages of `layer`, and q to `q`.
typedef struct PlRopeAndCache {
    const int32_t* rows;  // T
    const int32_t* positions;  // [T]
    const int32_t* slots;  // [T] page * page_size + offset; negative: K/V are not written
    const float* cos;  // [max length, rotary_dim / 2]
    const float* sin;
    const float* qkv;  // [T, (heads + 2 * kv_heads) * head_dim]
    float* q;  // [T, heads * head_dim]
    PlCache cache;
    int32_t layer;
    int32_t padding;
} PlRopeAndCache;

// Causal attention of each sequence's new tokens, its last ones, over its pages; decode, prefill and both at once.
typedef struct PlAttention {
    const int32_t* sequences;  // one count: S
    const int32_t* starts;  // [S + 1] of the new tokens, in q
    const int32_t* lengths;  // [S] of context, the new tokens included
    const int32_t* pages;
    const int32_t* page_starts;  // [S + 1]
    const float* q;  // [T, heads * head_dim]
    float* out;  // [T, heads * head_dim]
    void* scratch;  // pl_attention_bytes(...); shared by ops
    PlCache cache;
    int32_t layer;
    int32_t window;  // tokens that a token sees, itself included; 0: all
    float scale;
    int32_t padding;
} PlAttention;

// out[i] = x[indices[i]].
typedef struct PlGather {
    const int32_t* rows;  // R
    const int32_t* indices;  // [R]
    const float* x;  // [., columns]
    float* out;  // [R, columns]
    int32_t columns;
    int32_t padding;
} PlGather;

// What app/device/sampling.py calls a row. Where a count is 0, its pointers are not read.
typedef struct PlSampleRow {
    double temperature;
    double top_p;
    double min_p;
    double repetition_penalty;
    double frequency_penalty;
    double presence_penalty;
    uint64_t key;
    const int32_t* biased;  // [num_biased] token ids; a repeated id is added again
    const float* bias;  // [num_biased]
    const int32_t* context;  // [num_context] prompt and output, in any order, repeats allowed
    const int32_t* output;  // [num_output] tokens so far, in any order
    const int32_t* banned;  // [num_banned] ids that may not come now; those past the vocabulary are skipped
    const uint32_t* mask;  // [num_mask] words, or NULL: all are allowed
    int32_t num_biased;
    int32_t num_context;  // read with repetition_penalty != 1
    int32_t num_output;  // read with a frequency or presence penalty
    int32_t num_banned;
    int32_t num_mask;
    int32_t position;  // in the random stream
    int32_t top_k;  // 0 or less: all
    int32_t logprobs;  // alternatives; -1: no log-probability is wanted
} PlSampleRow;

// app/device/sampling.py: sample(). A row's logits may be overwritten.
typedef struct PlSample {
    const int32_t* rows;  // R
    float* logits;  // [R, vocab]
    const PlSampleRow* parameters;  // [R]
    int32_t* tokens;  // [R] chosen; -1 where the row holds a NaN or +inf, or has no token left
    double* logprobs;  // [R] of the token, where wanted
    int32_t* top_tokens;  // [R, most_top]: of each row the first min(logprobs, vocab) are written
    double* top_logprobs;  // [R, most_top]
    void* scratch;  // pl_sample_bytes(threads, vocab)
    int32_t vocab;
    int32_t most_top;
} PlSample;

// app/device/sampling.py: score(). A row that holds a NaN or +inf gives NaN, and -1 for its top tokens.
typedef struct PlScore {
    const int32_t* rows;  // Q
    const float* logits;  // [Q, vocab]
    const int32_t* targets;  // [Q]
    double* logprobs;  // [Q]
    int32_t* top_tokens;  // [Q, most_top]: of each row the first min(top, vocab) are written
    double* top_logprobs;  // [Q, most_top]
    const int32_t* top;  // one number: alternatives, at most most_top
    void* scratch;  // pl_sample_bytes(threads, vocab)
    int32_t vocab;
    int32_t most_top;
} PlScore;

typedef int32_t PlKind;
enum {
    PL_EMBED = 0,
    PL_NORM = 1,
    PL_LINEAR = 2,
    PL_GATED_LINEAR = 3,
    PL_ROPE_AND_CACHE = 4,
    PL_ATTENTION = 5,
    PL_GATHER = 6,
    PL_SAMPLE = 7,
    PL_SCORE = 8,
};

typedef struct PlOp {
    PlKind kind;
    int32_t padding;
    union {
        PlEmbed embed;
        PlNorm norm;
        PlLinear linear;
        PlGatedLinear gated_linear;
        PlRopeAndCache rope_and_cache;
        PlAttention attention;
        PlGather gather;
        PlSample sample;
        PlScore score;
    };
} PlOp;

typedef struct PlPool PlPool;

// PL_ABI of the library; and sizeof(PlOp), for the caller to check its mirror by.
int32_t pl_abi(void);
int32_t pl_op_bytes(void);

// The levels that this CPU has, best first, separated by spaces: of "avx512_bf16 avx512 avx2 portable".
const char* pl_levels(void);

// `threads` of them work, the caller of pl_run being one; the rest sleep between runs. level: one of pl_levels, or NULL
// for the best. Returns NULL where the level is not one of them or a thread cannot be started. Not shared with a child
// process after fork.
PlPool* pl_open(int32_t threads, const char* level);
void pl_close(PlPool* pool);

// Memory that the caller provides for the ops' scratch. Ops that run one after the other may share it.
int64_t pl_packed_bytes(int32_t rows, int32_t columns);
int64_t pl_attention_bytes(const PlCache* cache, int32_t tokens, int32_t sequences, int32_t max_length);
int64_t pl_sample_bytes(int32_t threads, int32_t vocab);

// Why no kernel takes the op's sizes and types, as one line of text; NULL where one does. To be asked once for each op
// of a program before it is run. Counts and what lies behind pointers are not looked at.
const char* pl_check(const PlOp* op);

// Runs the ops in order; returns when all is done. One run at a time for a pool.
void pl_run(PlPool* pool, const PlOp* ops, int32_t count);

#ifdef __cplusplus
}
#endif

// How it is built: app/build/native.py has the options, those of each level_*.cpp among them. The levels of x86-64 are
// empty files on other architectures.
