// The gated delta rule, token after token: S = g S + k d^T with d = beta (v - g S^T k), and o = S^T q.
//
// Columns of a state do not meet, so a piece of work is a block of columns of one sequence and head. Both products are
// taken with the state before the token, as S_new^T q = g S^T q + (k . q) d, so that one pass over the block writes a token
// into it and reads it for the next:
//
//     look 0 | write 0, look 1 | write 1, look 2 | ... | write n - 1          the block lies in the nearest cache meanwhile
//     ^ from the slot that is read                       ^ to the slot that is written
//
// Norms of q and k multiply the products. A column's sums are taken row by row of the state, from the first to the last,
// so no bit depends on blocks, steps or other sequences.
#include <algorithm>
#include <cmath>
#include <memory>

#include "exponentials.h"
#include "state_rows.h"

namespace {

constexpr int64_t COLUMNS = 32;  // of a block
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

// sum + a * b, in one rounding where the CPU has that: written out, because of two products a compiler may take either one.
inline Floats add_product(Floats sum, Floats a, Floats b) {
#if defined(__AVX512F__) || (defined(__FMA__) && defined(__AVX2__))
    return multiply_add(a, b, sum);
#else
    return sum + a * b;
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

// A thread's memory for one piece of work.
struct Scratch {
    alignas(64) float block[MOST_KEY_DIM * COLUMNS];
    Token tokens[2];  // of even and of odd numbers
    alignas(64) float decay[16], beta[16];  // of sixteen tokens
};

// Rows of `COLUMNS` floats.
struct Matrix {
    float* at;
    int64_t stride;
};

// log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), and log(1 + e) = 2 artanh(e / (2 + e)) as a series: at most
// 2 units in the last place off.
inline Floats softplus(Floats x) {
    Floats e = exp16(choose(x < 0.0f, x, -x)), z = e / (e + 2.0f), square = z * z;
    Floats series = splat(1.0f / 13.0f);
    for (float power : {11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) series = series * square + 1.0f / power;
    return choose(x < 0.0f, Floats{}, x) + 2.0f * (z + z * square * series);
}

// Reads a block for a token, and before that writes the token `written` into it; both in one pass.
template <bool WRITES, bool LOOKS>
Sums pass(Matrix from, Matrix to, int64_t rows, const Token* written, const Floats* delta, float decay, const Token* read) {
    Sums sums{};
    const Floats delta0 = WRITES ? delta[0] : Floats{}, delta1 = WRITES ? delta[1] : Floats{}, g = splat(decay);
    for (int64_t row = 0; row < rows; row++) {
        Floats state0 = load_vector<Floats>(from.at + row * from.stride);
        Floats state1 = load_vector<Floats>(from.at + row * from.stride + 16);
        if (WRITES) {
            const Floats key = splat(written->key[row]);
            state0 = add_product(key * delta0, state0, g);
            state1 = add_product(key * delta1, state1, g);
        }
        store_vector(to.at + row * to.stride, state0);
        store_vector(to.at + row * to.stride + 16, state1);
        if (LOOKS) {
            const Floats key = splat(read->key[row]), query = splat(read->query[row]);
            sums.by_key[0] = add_product(sums.by_key[0], state0, key);
            sums.by_key[1] = add_product(sums.by_key[1], state1, key);
            sums.by_query[0] = add_product(sums.by_query[0], state0, query);
            sums.by_query[1] = add_product(sums.by_query[1], state1, query);
        }
    }
    return sums;
}

// A block of columns of one sequence and head.
template <class T>
struct Piece {
    const DeltaRule<T>& a;
    Scratch& scratch;
    int64_t seq, head, first_column;

    int64_t columns() const { return std::min(COLUMNS, a.value_dim - first_column); }
    Matrix own_block() const { return {scratch.block, COLUMNS}; }
    Matrix in_slot(int64_t slot) const {
        return {a.state + slot * a.state_stride_slot + head * a.state_stride_head + first_column, a.state_stride_row};
    }
    void copy(Matrix from, Matrix to) const {
        for (int64_t row = 0; row < a.key_dim; row++)
            for (int64_t i = 0; i < columns(); i += 16)
                store_some(to.at + row * to.stride + i, load_some(from.at + row * from.stride + i, columns() - i), columns() - i);
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

    void compute() const {
        const int64_t first = a.rows.first_row(seq), count = a.rows.end_row(seq) - first;
        const int64_t read = a.rows.read[seq], write = a.rows.write[seq];
        const bool is_whole = columns() == COLUMNS;
        Matrix from = own_block();
        if (read < 0)
            std::fill_n(scratch.block, a.key_dim * COLUMNS, 0.0f);
        else if (is_whole && count > 0)
            from = in_slot(read);
        else
            copy_in(in_slot(read));
        if (count == 0) {
            if (write >= 0) copy(own_block(), in_slot(write));
            return;
        }
        load(scratch.tokens[0], first);
        Sums sums = pass<false, true>(from, own_block(), a.key_dim, nullptr, nullptr, 0.0f, &scratch.tokens[0]);
        for (int64_t number = 0; number < count; number++) {
            if (number % 16 == 0) load_gates(first + number, count - number);
            const Token& token = scratch.tokens[number % 2];
            const float decay = scratch.decay[number % 16];
            Floats delta[2];
            answer(first + number, token, decay, scratch.beta[number % 16], sums, delta);
            if (number + 1 < count) {
                Token& next = scratch.tokens[(number + 1) % 2];
                load(next, first + number + 1);
                sums = pass<true, true>(own_block(), own_block(), a.key_dim, &token, delta, decay, &next);
            } else if (write >= 0) {
                Matrix to = is_whole ? in_slot(write) : own_block();
                pass<true, false>(own_block(), to, a.key_dim, &token, delta, decay, nullptr);
                if (!is_whole) copy(own_block(), in_slot(write));
            }
        }
    }

    // Copies into the scratch's block, with zeros up to a whole vector.
    void copy_in(Matrix from) const {
        for (int64_t row = 0; row < a.key_dim; row++)
            for (int64_t i = 0; i < COLUMNS; i += 16)
                store_vector(scratch.block + row * COLUMNS + i, some(from.at + row * from.stride, i));
    }

    template <class E>
    Floats some(const E* columns_at, int64_t i) const {
        return i < columns() ? load_some(columns_at + i, columns() - i) : Floats{};
    }

    // Writes what a token gets, and returns what it adds to the state, times the scale of its key, in `delta`.
    void answer(int64_t row, const Token& token, float decay, float beta, const Sums& sums, Floats* delta) const {
        const int64_t before = 2 * a.key_heads * a.key_dim + head * a.value_dim + first_column;
        const T* value = a.qkv + row * a.qkv_stride + before;
        T* out = a.out + (row * a.value_heads + head) * a.value_dim + first_column;
        for (int64_t part = 0; part < 2; part++) {
            const int64_t i = 16 * part;
            Floats difference = (some(value, i) - sums.by_key[part] * (decay * token.key_scale)) * beta;
            Floats o = sums.by_query[part] * (decay * token.query_scale) + difference * token.key_by_query;
            if (i < columns()) store_some(out + i, o, columns() - i);
            delta[part] = difference * token.key_scale;
        }
    }
};

template <class T>
void gated_delta_rule(const void* arguments, Team& team) {
    const auto& a = *static_cast<const DeltaRule<T>*>(arguments);
    static thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
    const int64_t blocks = (a.value_dim + COLUMNS - 1) / COLUMNS, of_seq = a.value_heads * blocks;
    const int64_t total = a.rows.seqs.count() * of_seq;
    for (int64_t number; (number = team.take()) < total;)
        Piece<T>{a, *scratch, number / of_seq, number % of_seq / blocks, number % blocks * COLUMNS}.compute();
}

}  // namespace

extern "C" {
void gated_delta_rule(const void* arguments, Team& team, int) { gated_delta_rule<Element>(arguments, team); }
}
