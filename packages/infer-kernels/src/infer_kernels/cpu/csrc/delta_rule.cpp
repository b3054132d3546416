// The gated delta rule, token after token: S = g S + k d^T with d = beta (v - g S^T k), and o = S^T q.
//
// Columns of a state do not meet, so a piece of work is some blocks of columns of one sequence and head. Both products are
// taken with the state before the token, as S_new^T q = g S^T q + (k . q) d, so that one pass over the block writes a token
// into it and reads it for the next:
//
//     read 0 | write 0, read 1 | write 1, read 2 | ... | write n - 1          the block lies in the nearest cache meanwhile
//     ^ from the slot that is read                       ^ to the slot that is written
//
// A decode, n = 1, moves a state once: both passes go over the rows of the slot from the first to the last, all columns of
// some rows at a time. A sequence that goes on from what the one before it writes is computed by the same piece, after it.
//
// Norms of q and k multiply the products. A column's sums are taken row by row of the state, from the first to the last,
// so no bit depends on blocks, steps or other sequences.
#include <algorithm>
#include <cmath>
#include <memory>

#include "conversions.h"
#include "exponentials.h"
#include "state_rows.h"

namespace {

constexpr int64_t COLUMNS = 32;           // of a block
constexpr int64_t MOST_BLOCKS = 16;       // of a piece
constexpr int64_t ROWS_TOGETHER = 16;     // of a decode's state
constexpr int64_t PIECES_OF_A_THREAD = 4;  // at least, where there are as many blocks
constexpr int64_t MOST_KEY_DIM = 512;
constexpr float NORM_EPS = 1e-6f;  // as in states/gated_delta_rule.py

template <class T>
struct DeltaRule {
    StateRows rows;
    T* out;  // [tokens, value_heads, value_dim]
    const T* qkv;  // [tokens, 2 * key_heads * key_dim + value_heads * value_dim]
    int64_t qkv_stride;
    const T* a;  // [tokens, value_heads]
    int64_t a_stride;
    const T* b;  // [tokens, value_heads]
    int64_t b_stride;
    float* state;  // [slots, value_heads, key_dim, value_dim]
    int64_t state_stride_slot;
    int64_t state_stride_head;
    int64_t state_stride_row;
    const float* a_log;    // [value_heads]
    const float* dt_bias;  // [value_heads]
    int64_t key_heads;
    int64_t value_heads;
    int64_t key_dim;
    int64_t value_dim;
};

// Sixteen times a number in memory, in one instruction.
inline Floats broadcast(const float* at) {
#if defined(__AVX512F__)
    return (Floats)_mm512_set1_ps(*at);
#elif defined(__AVX2__)
    return {_mm256_broadcast_ss(at), _mm256_broadcast_ss(at)};
#else
    return splat(*at);
#endif
}

// Stores at an address of whole vectors past the caches: nothing reads a state again before the next step of its layer.
inline void stream(float* at, Floats value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(at, (__m512)value);
#elif defined(__AVX2__)
    _mm256_stream_ps(at, value.parts[0]);
    _mm256_stream_ps(at + 8, value.parts[1]);
#else
    store_vector(at, value);
#endif
}

// Lets other threads see, after a barrier, what this one has streamed.
inline void finish_streams() {
#if defined(__AVX512F__) || defined(__AVX2__)
    _mm_sfence();
#endif
}

// Key and query of a token, and what they are multiplied by.
struct Token {
    alignas(64) float key[MOST_KEY_DIM];
    alignas(64) float query[MOST_KEY_DIM];
    float key_scale, query_scale, key_by_query;
};

// The products of a block with a token's key and query.
struct Sums {
    Floats by_key[2], by_query[2];
};

// What a token adds to a block for each element of its key.
struct Delta {
    Floats parts[2];
};

// A thread's memory for one piece of work.
struct Scratch {
    alignas(64) float block[MOST_KEY_DIM * COLUMNS];
    Token tokens[2];  // of even and of odd numbers
    alignas(64) float decay[16], beta[16];  // of sixteen tokens
};

// Rows of a block.
struct Matrix {
    float* at;
    int64_t stride;
    bool is_read_next = false;  // by the next sequence of the same piece

    bool is_streamed() const { return !is_read_next && (uintptr_t)at % 64 == 0 && stride % 16 == 0; }
};

enum class To { NOWHERE, CACHE, MEMORY };

// Takes rows of a block: writes the token `written` into them, stores them, and adds their products with the token `read`.
template <bool WRITES, bool READS, To TO>
void pass(Matrix from, Matrix to, int64_t begin, int64_t end, const Token* written, const Delta* delta, float decay,
          const Token* read, Sums* sums_of_read) {
    Sums sums{};
    if (READS) sums = *sums_of_read;
    const Delta d = WRITES ? *delta : Delta{};
    const Floats g = splat(decay);
    const bool is_streamed = TO == To::MEMORY && to.is_streamed() && to.at != from.at;  // else its lines are near
    for (int64_t row = begin; row < end; row++) {
        Floats state0 = load_vector<Floats>(from.at + row * from.stride);
        Floats state1 = load_vector<Floats>(from.at + row * from.stride + 16);
        if (WRITES) {
            const Floats key = broadcast(written->key + row);
            state0 = add_product(key * d.parts[0], state0, g);
            state1 = add_product(key * d.parts[1], state1, g);
        }
        if (TO == To::CACHE) {
            float* at = (float*)__builtin_assume_aligned(to.at + row * COLUMNS, 64);
            store_vector(at, state0);
            store_vector(at + 16, state1);
        } else if (is_streamed) {
            stream(to.at + row * to.stride, state0);
            stream(to.at + row * to.stride + 16, state1);
        } else if (TO == To::MEMORY) {
            store_vector(to.at + row * to.stride, state0);
            store_vector(to.at + row * to.stride + 16, state1);
        }
        if (READS) {
            const Floats key = broadcast(read->key + row), query = broadcast(read->query + row);
            sums.by_key[0] = add_product(sums.by_key[0], state0, key);
            sums.by_key[1] = add_product(sums.by_key[1], state1, key);
            sums.by_query[0] = add_product(sums.by_query[0], state0, query);
            sums.by_query[1] = add_product(sums.by_query[1], state1, query);
        }
    }
    if (READS) *sums_of_read = sums;
}

// Columns of one sequence and head.
template <class T>
struct Piece {
    const DeltaRule<T>& a;
    Scratch& scratch;
    int64_t seq, head, first_column, end_column;

    int64_t columns() const { return end_column - first_column; }
    bool is_whole() const { return columns() % COLUMNS == 0; }
    Piece block(int64_t number) const {
        const int64_t first = first_column + number * COLUMNS;
        return {a, scratch, seq, head, first, std::min(first + COLUMNS, end_column)};
    }
    Matrix own_block() const { return {scratch.block, COLUMNS}; }
    Matrix in_slot(int64_t slot) const {
        float* at = a.state + slot * a.state_stride_slot + head * a.state_stride_head + first_column;
        return {at, a.state_stride_row, a.rows.goes_on(seq + 1)};
    }

    // Key and query of a token as floats, with zeros up to a whole vector.
    void load(Token& token, int64_t row) const {
        const T* query = a.qkv + row * a.qkv_stride + head / (a.value_heads / a.key_heads) * a.key_dim;
        const T* key = query + a.key_heads * a.key_dim;
        Floats keys{}, queries{}, both{};
        for (int64_t i = 0; i < a.key_dim; i += 16) {
            Floats k = load_some(key + i, a.key_dim - i), q = load_some(query + i, a.key_dim - i);
            store_vector(token.key + i, k);
            store_vector(token.query + i, q);
            keys = add_product(keys, k, k);
            queries = add_product(queries, q, q);
            both = add_product(both, k, q);
        }
        token.key_scale = 1.0f / std::sqrt(sum(keys) + NORM_EPS);
        token.query_scale = 1.0f / std::sqrt(sum(queries) + NORM_EPS) / std::sqrt((float)a.key_dim);
        token.key_by_query = sum(both) * token.key_scale * token.query_scale;
    }

    // The gates of up to sixteen tokens at once.
    void load_gates(int64_t first_row, int64_t count) const {
        alignas(64) float decays[16] = {}, betas[16] = {};
        for (int64_t i = 0; i < std::min<int64_t>(count, 16); i++) {
            decays[i] = to_float(a.a[(first_row + i) * a.a_stride + head]);
            betas[i] = to_float(a.b[(first_row + i) * a.b_stride + head]);
        }
        const float rate = std::min(exp16(splat(a.a_log[head]))[0], 3e38f);  // infinity times zero would be no number
        Floats decay = exp16(softplus(load_vector<Floats>(decays) + a.dt_bias[head]) * -rate);
        Floats beta = rounded<T>(1.0f / (1.0f + exp16(-load_vector<Floats>(betas))));
        store_vector(scratch.decay, decay);
        store_vector(scratch.beta, beta);
    }

    // These columns of the sequence, and of those that go on from it.
    void compute_all() const {
        if (a.rows.goes_on(seq)) return;
        Piece piece = *this;
        do piece.compute();
        while (a.rows.goes_on(++piece.seq));
    }

    void compute() const {
        const int64_t first = a.rows.first_row(seq), count = a.rows.end_row(seq) - first;
        if (count == 1 && a.rows.read[seq] >= 0 && is_whole()) return decode(first);
        for (int64_t number = 0; number * COLUMNS < columns(); number++) block(number).compute_block(first, count);
    }

    // One token of a sequence that has a state.
    void decode(int64_t row) const {
        const int64_t write = a.rows.write[seq], blocks = columns() / COLUMNS;
        const Token& token = scratch.tokens[0];
        Sums sums[MOST_BLOCKS]{};
        Delta deltas[MOST_BLOCKS];
        load(scratch.tokens[0], row);
        load_gates(row, 1);
        const float decay = scratch.decay[0];
        for (int64_t begin = 0; begin < a.key_dim; begin += ROWS_TOGETHER)
            for (int64_t number = 0; number < blocks; number++) {
                Matrix from = block(number).in_slot(a.rows.read[seq]);
                int64_t end = std::min(begin + ROWS_TOGETHER, a.key_dim);
                pass<false, true, To::NOWHERE>(from, {}, begin, end, nullptr, nullptr, 0.0f, &token, &sums[number]);
            }
        for (int64_t number = 0; number < blocks; number++)
            deltas[number] = block(number).answer(row, token, decay, scratch.beta[0], sums[number]);
        if (write < 0) return;
        for (int64_t begin = 0; begin < a.key_dim; begin += ROWS_TOGETHER)
            for (int64_t number = 0; number < blocks; number++) {
                Matrix from = block(number).in_slot(a.rows.read[seq]), to = block(number).in_slot(write);
                int64_t end = std::min(begin + ROWS_TOGETHER, a.key_dim);
                pass<true, false, To::MEMORY>(from, to, begin, end, &token, &deltas[number], decay, nullptr, nullptr);
            }
    }

    // Any number of tokens, for columns of one block.
    void compute_block(int64_t first, int64_t count) const {
        const int64_t write = a.rows.write[seq];
        load_block();
        if (count == 0) {
            if (write >= 0) store_block(in_slot(write));
            return;
        }
        Sums sums{};
        load(scratch.tokens[0], first);
        pass<false, true, To::NOWHERE>(own_block(), {}, 0, a.key_dim, nullptr, nullptr, 0.0f, &scratch.tokens[0], &sums);
        for (int64_t number = 0; number < count; number++) {
            if (number % 16 == 0) load_gates(first + number, count - number);
            const Token& token = scratch.tokens[number % 2];
            const float decay = scratch.decay[number % 16];
            const Delta delta = answer(first + number, token, decay, scratch.beta[number % 16], sums);
            if (number + 1 < count) {
                Token& next = scratch.tokens[(number + 1) % 2];
                load(next, first + number + 1);
                sums = {};
                pass<true, true, To::CACHE>(own_block(), own_block(), 0, a.key_dim, &token, &delta, decay, &next, &sums);
            } else if (write >= 0) {
                pass<true, false, To::CACHE>(own_block(), own_block(), 0, a.key_dim, &token, &delta, decay, nullptr, {});
                store_block(in_slot(write));
            }
        }
    }

    // The state before these rows, with zeros up to a whole block.
    void load_block() const {
        const int64_t slot = a.rows.read[seq];
        if (slot < 0) {
            std::fill_n(scratch.block, a.key_dim * COLUMNS, 0.0f);
            return;
        }
        Matrix from = in_slot(slot);
        for (int64_t row = 0; row < a.key_dim; row++)
            for (int64_t i = 0; i < COLUMNS; i += 16)
                store_vector(scratch.block + row * COLUMNS + i, some(from.at + row * from.stride, i));
    }

    void store_block(Matrix to) const {
        const bool is_streamed = is_whole() && to.is_streamed();
        for (int64_t row = 0; row < a.key_dim; row++)
            for (int64_t i = 0; i < columns(); i += 16) {
                Floats values = load_vector<Floats>(scratch.block + row * COLUMNS + i);
                float* at = to.at + row * to.stride + i;
                if (is_streamed)
                    stream(at, values);
                else
                    store_some(at, values, columns() - i);
            }
    }

    template <class E>
    Floats some(const E* columns_at, int64_t i) const {
        return i < columns() ? load_some(columns_at + i, columns() - i) : Floats{};
    }

    // Writes what a token gets in the columns of one block, and returns what it adds to them.
    Delta answer(int64_t row, const Token& token, float decay, float beta, const Sums& sums) const {
        const int64_t before = 2 * a.key_heads * a.key_dim + head * a.value_dim + first_column;
        const T* value = a.qkv + row * a.qkv_stride + before;
        T* out = a.out + (row * a.value_heads + head) * a.value_dim + first_column;
        Delta delta;
        for (int64_t part = 0; part < 2; part++) {
            const int64_t i = 16 * part;
            Floats difference = (some(value, i) - sums.by_key[part] * (decay * token.key_scale)) * beta;
            Floats o = add_product(difference * token.key_by_query, sums.by_query[part], decay * token.query_scale);
            if (i < columns()) store_some(out + i, o, columns() - i);
            delta.parts[part] = difference * token.key_scale;
        }
        return delta;
    }
};

template <class T>
void gated_delta_rule(const void* arguments, Team& team) {
    const auto& a = *static_cast<const DeltaRule<T>*>(arguments);
    static thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
    const int64_t heads = a.rows.seqs.count() * a.value_heads;
    const int64_t width = heads < team.size * PIECES_OF_A_THREAD ? COLUMNS : MOST_BLOCKS * COLUMNS;
    const int64_t of_head = (a.value_dim + width - 1) / width;
    for (int64_t number; (number = team.take()) < heads * of_head;) {
        const int64_t head = number / of_head, first = number % of_head * width, end = std::min(first + width, a.value_dim);
        Piece<T>{a, *scratch, head / a.value_heads, head % a.value_heads, first, end}.compute_all();
    }
    finish_streams();
}

}  // namespace

extern "C" {
void gated_delta_rule(const void* arguments, Team& team) { gated_delta_rule<Element>(arguments, team); }
}
