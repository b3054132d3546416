// Mamba 2's selective scan, token after token: S = g S + (step x) B^T, and y = S C + d x.
//
// Rows of a state do not meet, so a piece of work is a block of rows of one sequence and head. One pass over the block writes
// a token into it and reads it: a step of one token loads and stores a state once.
//
//     slot that is read -> token 0 -> block -> token 1 -> block -> ... -> token n - 1 -> slot that is written
//
// A sequence that goes on from what the one before it writes is computed by the same piece, after it.
//
// A row's sum is taken in sixteen lanes, from the first element to the last, and then over the lanes, so no bit depends on
// blocks, steps or other sequences.
#include <algorithm>
#include <memory>

#include "conversions.h"
#include "exponentials.h"
#include "state_rows.h"

namespace {

constexpr int64_t ROWS = 16;  // of a block
constexpr int64_t MOST_STATE_SIZE = 512;

template <class T>
struct Scan {
    StateRows rows;
    T* out;        // [tokens, heads * head_dim]
    const T* xbc;  // [tokens, heads * head_dim + 2 * groups * state_size]
    int64_t xbc_stride;
    const T* dt;  // [tokens, heads]
    int64_t dt_stride;
    float* state;  // [slots, heads, head_dim, state_size]
    int64_t state_stride_slot;
    int64_t state_stride_head;
    int64_t state_stride_row;
    const float* a_log;    // [heads]
    const float* d;        // [heads]
    const float* dt_bias;  // [heads]
    int64_t groups;
    int64_t heads;
    int64_t head_dim;
    int64_t state_size;
    double min_step;
    double max_step;
};

// A thread's memory for one piece of work.
struct ScanScratch {
    alignas(64) float block[ROWS * MOST_STATE_SIZE];
    alignas(64) float b[MOST_STATE_SIZE], c[MOST_STATE_SIZE];  // of a token
    alignas(64) float input[ROWS], output[ROWS];
    alignas(64) float decay[16], step[16];  // of sixteen tokens
};

// Rows of a state.
struct StateBlock {
    float* at;
    int64_t stride;
};

// Writes a token into `COUNT` rows and reads them; `size` is a multiple of 16.
template <int COUNT>
void advance_rows(StateBlock from, StateBlock to, int64_t row, int64_t size, float decay, ScanScratch& token) {
    const Floats g = splat(decay);
    Floats input[COUNT], sums[COUNT];
    for (int i = 0; i < COUNT; i++) input[i] = splat(token.input[row + i]), sums[i] = Floats{};
    for (int64_t column = 0; column < size; column += 16) {
        const Floats b = load_vector<Floats>(token.b + column), c = load_vector<Floats>(token.c + column);
        for (int i = 0; i < COUNT; i++) {
            Floats state = load_vector<Floats>(from.at + (row + i) * from.stride + column);
            state = add_product(input[i] * b, state, g);
            store_vector(to.at + (row + i) * to.stride + column, state);
            sums[i] = add_product(sums[i], state, c);
        }
    }
    for (int i = 0; i < COUNT; i++) token.output[row + i] = sum(sums[i]);
}

// A block of rows of one sequence and head.
template <class T>
struct ScanPiece {
    const Scan<T>& a;
    ScanScratch& scratch;
    int64_t seq, head, first_row;

    int64_t rows() const { return std::min(ROWS, a.head_dim - first_row); }
    int64_t padded() const { return (a.state_size + 15) / 16 * 16; }
    StateBlock own_block() const { return {scratch.block, padded()}; }
    StateBlock in_slot(int64_t slot) const {
        float* of_head = a.state + slot * a.state_stride_slot + head * a.state_stride_head;
        return {of_head + first_row * a.state_stride_row, a.state_stride_row};
    }

    // Copies rows, with zeros up to a whole vector where the block has room for them.
    void copy_in(StateBlock from) const {
        for (int64_t row = 0; row < rows(); row++)
            for (int64_t i = 0; i < a.state_size; i += 16)
                store_vector(scratch.block + row * padded() + i, load_some(from.at + row * from.stride + i, a.state_size - i));
    }
    void copy_out(StateBlock to) const {
        for (int64_t row = 0; row < rows(); row++)
            for (int64_t i = 0; i < a.state_size; i += 16)
                store_some(to.at + row * to.stride + i, load_vector<Floats>(scratch.block + row * padded() + i), a.state_size - i);
    }

    // Steps and decays of up to sixteen tokens at once.
    void load_steps(int64_t first, int64_t count) const {
        alignas(64) float steps[16] = {};
        for (int64_t i = 0; i < std::min<int64_t>(count, 16); i++) steps[i] = to_float(a.dt[(first + i) * a.dt_stride + head]);
        const float rate = std::min(exp16(splat(a.a_log[head]))[0], 3e38f);  // infinity times zero would be no number
        Floats step = softplus(load_vector<Floats>(steps) + a.dt_bias[head]);
        const Floats least = splat((float)a.min_step), most = splat((float)a.max_step);
        step = choose(step < least, least, choose(step > most, most, step));
        store_vector(scratch.step, step);
        store_vector(scratch.decay, exp16(step * -rate));
    }

    // B and C of a token as floats, with zeros up to a whole vector.
    void load_token(int64_t row) const {
        const T* b = a.xbc + row * a.xbc_stride + a.heads * a.head_dim + head / (a.heads / a.groups) * a.state_size;
        const T* c = b + a.groups * a.state_size;
        for (int64_t i = 0; i < a.state_size; i += 16) {
            store_vector(scratch.b + i, load_some(b + i, a.state_size - i));
            store_vector(scratch.c + i, load_some(c + i, a.state_size - i));
        }
    }

    // These rows of the sequence, and of those that go on from it.
    void compute_all() const {
        if (a.rows.goes_on(seq)) return;
        ScanPiece piece = *this;
        do piece.compute();
        while (a.rows.goes_on(++piece.seq));
    }

    void compute() const {
        const int64_t first = a.rows.first_row(seq), count = a.rows.end_row(seq) - first;
        const int64_t read = a.rows.read[seq], write = a.rows.write[seq];
        const bool is_whole = a.state_size % 16 == 0;
        StateBlock from = own_block();
        if (read < 0)
            std::fill_n(scratch.block, rows() * padded(), 0.0f);
        else if (is_whole && count > 0)
            from = in_slot(read);
        else
            copy_in(in_slot(read));
        for (int64_t number = 0; number < count; number++) {
            const bool goes_out = is_whole && write >= 0 && number == count - 1;
            if (number % 16 == 0) load_steps(first + number, count - number);
            load_token(first + number);
            advance(first + number, from, goes_out ? in_slot(write) : own_block(), number % 16);
            from = own_block();
        }
        if (write >= 0 && !(is_whole && count > 0)) copy_out(in_slot(write));
    }

    void advance(int64_t row, StateBlock from, StateBlock to, int64_t number) const {
        const int64_t before = head * a.head_dim + first_row;
        const Floats x = load_some(a.xbc + row * a.xbc_stride + before, rows());
        const float decay = scratch.decay[number];
        store_vector(scratch.input, x * scratch.step[number]);
        int64_t i = 0;
        for (; i + 2 <= rows(); i += 2) advance_rows<2>(from, to, i, padded(), decay, scratch);
        for (; i < rows(); i++) advance_rows<1>(from, to, i, padded(), decay, scratch);
        T* out = a.out + row * a.heads * a.head_dim + before;
        store_some(out, add_product(load_vector<Floats>(scratch.output), x, splat(a.d[head])), rows());
    }
};

template <class T>
void mamba2_scan(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Scan<T>*>(arguments);
    static thread_local const std::unique_ptr<ScanScratch> scratch(new ScanScratch());
    const int64_t blocks = (a.head_dim + ROWS - 1) / ROWS, of_seq = a.heads * blocks;
    const int64_t total = a.rows.seqs.count() * of_seq;
    for (int64_t number; (number = team.take()) < total;)
        ScanPiece<T>{a, *scratch, number / of_seq, number % of_seq / blocks, number % blocks * ROWS}.compute_all();
}

}  // namespace

extern "C" {
void mamba2_scan(const void* arguments, Team& team) { mamba2_scan<Element>(arguments, team); }
}
