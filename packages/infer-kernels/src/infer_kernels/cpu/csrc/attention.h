// The arguments of attention, how its work is divided, and the sums that chunks of keys leave to be joined.
#pragma once

#include <algorithm>

#include "exponentials.h"
#include "team.h"
#include "tile.h"

namespace {

constexpr int CHUNK = 8 * TILE;
constexpr int TILE_ROWS = 96;  // as `MOST_GROUP` of ops.py
constexpr int MOST_HEAD_DIM = 512;
constexpr float MINUS_INFINITY = -__builtin_inff();
constexpr float LOG2_E = 1.44269504088896341f;

// T: of queries and results. K: of the cache, T or int8_t.
template <class T, class K>
struct Attention {
    Rows seqs;
    T* out;  // [tokens, q_heads, head_dim]
    int64_t out_stride_token;
    int64_t out_stride_head;
    const T* q;
    int64_t q_stride_token;
    int64_t q_stride_head;
    const K* keys;  // [blocks, kv_heads, block_size, head_dim], or codes [..., head_dim + 4]
    int64_t keys_stride_block;
    int64_t keys_stride_head;
    int64_t keys_stride_token;
    const K* values;
    int64_t values_stride_block;
    int64_t values_stride_head;
    int64_t values_stride_token;
    const int32_t* query_start;  // [seqs + 1]
    const int32_t* seq_lens;     // [seqs]
    const int32_t* block_table;  // [seqs, columns]
    int64_t block_table_stride;
    int64_t block_size;
    int64_t q_heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t window;  // 0: none
    double scale;
    double soft_cap;  // 0: none
    OrNull<const T> sinks;  // [q_heads]

    int64_t group() const { return q_heads / kv_heads; }
    int64_t positions_per_tile() const { return std::max<int64_t>(1, TILE_ROWS / group()); }
    int64_t rows_of(int64_t seq) const { return query_start[seq + 1] - query_start[seq]; }
    int64_t first_key(int64_t position) const { return window ? std::max<int64_t>(0, position - window + 1) : 0; }
    int64_t chunks_of(int64_t seq) const {  // of a decode
        int64_t position = seq_lens[seq] - 1;
        return position / CHUNK - first_key(position) / CHUNK + 1;
    }
    // Whether a sequence is a decode of several chunks, which are computed apart and joined.
    bool is_joined(int64_t seq) const { return rows_of(seq) == 1 && seq_lens[seq] > 0 && chunks_of(seq) > 1; }
    // How many pieces of work a sequence is: a head's chunk of a decode, or a head's tile of rows of a prompt.
    int64_t pieces_of(int64_t seq) const {
        int64_t rows = rows_of(seq);
        if (rows == 0) return 0;
        if (seq_lens[seq] == 0) return kv_heads;
        return kv_heads * (rows == 1 ? chunks_of(seq) : (rows + positions_per_tile() - 1) / positions_per_tile());
    }
};

// Running maxima, sums and weighted values of rows: [rows], [rows, 16], whose sixteen add up, and [rows, width].
struct Sums {
    float* largest;
    float* totals;
    float* values;
};

// Multiplies all of a row's sums, [size], and adds what is `after` times those of `later`.
inline void combine(float* sums, float factor, const float* later, float after, int64_t size) {
    for (int64_t i = 0; i < size; i += 16)
        store_vector(sums + i, add_product(load_vector<Floats>(sums + i) * factor, load_vector<Floats>(later + i), after));
}

// Adds the later `chunk` to `all`, for `rows` rows.
void join(const Sums& all, const Sums& chunk, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        if (chunk.largest[row] == MINUS_INFINITY) continue;
        float largest = std::max(all.largest[row], chunk.largest[row]);
        float since[2] = {all.largest[row] - largest, chunk.largest[row] - largest};
        Floats factors = exp2_16(load_some(since, 2));
        all.largest[row] = largest;
        combine(all.totals + 16 * row, factors[0], chunk.totals + 16 * row, factors[1], 16);
        combine(all.values + row * width, factors[0], chunk.values + row * width, factors[1], width);
    }
}

void clear(const Sums& sums, int64_t rows, int64_t width) {
    std::fill_n(sums.largest, rows, MINUS_INFINITY);
    std::fill_n(sums.totals, rows * 16, 0.0f);
    std::fill_n(sums.values, rows * width, 0.0f);
}

}  // namespace
