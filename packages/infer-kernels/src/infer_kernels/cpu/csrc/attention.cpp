// Causal attention over a paged cache: decodes and prompts by one algorithm, whose arithmetic depends on positions alone.
//
//     keys of a sequence   |0 ........ 63|64 ..... 127|...      tiles: scores, online softmax (Milakov and Gimelshein,
//                          |0 .............. CHUNK - 1|...      2018), products with values
//
// A row's tiles begin at multiples of TILE and are summed from the first to the last within a chunk; chunks are then
// joined from the first to the last. Who computes a chunk, and which other rows are computed with it, changes no bit: a
// decode's chunks are shared by the threads, a prompt's rows meet every tile together (Dao et al., "FlashAttention",
// 2022).
//
// Scores and sums are fp32. Probabilities are rounded to bf16 before they meet the values where queries are bf16. Scores
// are in units of log 2, so that probabilities are powers of 2.
//
// A cache may hold codes of eight bits, with a scale for each row. They meet queries and probabilities as whole numbers,
// exactly: a key's scale multiplies its scores, and a value's scale its probabilities before they are rounded.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#pragma GCC optimize("O3")  // 1.15 times as fast; the other sources gain nothing and would take twice as long to compile
#endif
#include <cmath>
#include <memory>

#include "attention.h"
#include "tile_amx.h"
#include "tile_in_place.h"

namespace {

template <class T>
struct Operand {
    using Type = float;
};
template <>
struct Operand<bf16> {
    using Type = bf16;
};

inline void copy_row(bf16* to, const bf16* from, int64_t size) { std::memcpy(to, from, size * sizeof(bf16)); }
template <class T>
inline void copy_row(float* to, const T* from, int64_t size) {
    for (int64_t i = 0; i < size; i += 16) store_vector(to + i, load16(from + i));
}

template <class K>
constexpr bool HAS_SCALES = std::is_same_v<K, int8_t>;

// Rows that one product computes, of a cache of C and inputs of X.
template <class C, class X = C>
constexpr int TOGETHER = (std::is_same_v<C, X> ? 1 : 2) * SUMS / WIDE;
constexpr int ROWS_TOGETHER = std::max(2 * SUMS / WIDE, amx::MOST_ROWS);

// A thread's memory for one piece of work.
template <class K, class C>
struct Scratch {
    TileRows<K> now, next;
    int64_t positions[TILE_ROWS];
    alignas(64) C queries[TILE_ROWS * MOST_HEAD_DIM];
    alignas(64) float widened_queries[WIDENS<C> ? TILE_ROWS * MOST_HEAD_DIM : 1];
    alignas(64) C query_pairs[FEW_ROWS * MOST_HEAD_DIM];
    alignas(64) C keys[TILE * MOST_HEAD_DIM];
    alignas(64) C values[TILE * MOST_HEAD_DIM];
    alignas(64) C probabilities[ROWS_TOGETHER * TILE];
    alignas(64) float widened_probabilities[WIDENS<C> ? ROWS_TOGETHER * TILE : 1];
    alignas(64) float scores[ROWS_TOGETHER * TILE];
    alignas(64) float key_scales[TILE];  // of codes, times the scale of all scores
    alignas(64) float value_scales[TILE];
    alignas(64) float sums[2][TILE_ROWS * (MOST_HEAD_DIM + 17)];
};

// The rows of one sequence and key-value head that are computed together, positions times the group's heads, and the keys
// that they meet.
template <class T, class K>
struct Piece {
    const Attention<T, K>* a;
    int64_t seq, head, first_row, positions;  // `first_row` of the sequence's rows in this step
    int64_t begin, end;                       // keys
    int64_t joined = -1;                      // of a decode's chunk: its number among those that are joined
    using C = typename Operand<T>::Type;

    int64_t rows() const { return positions * a->group(); }
    // Whether queries and probabilities are widened before products, not in them: that takes more than the rows of one tile.
    bool is_widened() const { return WIDENS<C> && rows() > TOGETHER<C>; }
    int64_t padded_rows() const { return takes_amx<C>() ? amx::RowTiles(rows()).padded_rows() : rows(); }
    // The elements of a head, with zeros up to what products want.
    int64_t depth() const {
        return takes_amx<C>() ? (a->head_dim + amx::INPUTS - 1) / amx::INPUTS * amx::INPUTS : a->head_dim;
    }
    int64_t position(int64_t row) const {
        return a->seq_lens[seq] - a->rows_of(seq) + first_row + row / a->group();
    }
    int64_t width() const { return (a->head_dim + PANEL - 1) / PANEL * PANEL; }
    int64_t offset(int64_t row, int64_t token_stride, int64_t head_stride) const {
        return (a->query_start[seq] + first_row + row / a->group()) * token_stride +
               (head * a->group() + row % a->group()) * head_stride;
    }

    void load_queries(Scratch<K, C>& scratch) const {
        for (int64_t row = 0; row < rows(); row++) {
            const T* from = a->q + offset(row, a->q_stride_token, a->q_stride_head);
            scratch.positions[row] = position(row);
            if (is_widened()) {
                copy_row(scratch.widened_queries + row * a->head_dim, from, a->head_dim);
                continue;
            }
            C* query = scratch.queries + row * depth();
            copy_row(query, from, a->head_dim);
            std::fill(query + a->head_dim, query + depth(), C{});
        }
#if HAS_AMX_BF16
        if constexpr (std::is_same_v<C, bf16>)
            if (takes_amx<C>()) {
                bool is_few = rows() <= FEW_ROWS;
                if (is_few) pair_queries(scratch.query_pairs, scratch.queries, rows(), depth());
                amx::configure(is_few ? config_of_few(rows()) : amx::RowTiles(rows()).height);
            }
#endif
        if (width() != a->head_dim) std::fill_n(scratch.values, TILE * width(), C{});
    }

    int64_t first_tile() const { return begin / TILE * TILE; }

    // Finds the rows of a tile. Keys that are not this piece's are zeros: no row of it sees them, and their memory may be
    // another sequence's, or nobody's.
    void find(TileRows<K>& rows, int64_t tile) const {
        static const K zeros[MOST_HEAD_DIM + 4] = {};
        std::fill_n(rows.keys, TILE, zeros);
        std::fill_n(rows.values, TILE, zeros);
        int64_t first = std::max(tile, begin), last = std::min(end, tile + TILE);
        const int32_t* blocks = a->block_table + seq * a->block_table_stride;
        int64_t column = first / a->block_size, place = first % a->block_size;
        for (int64_t key = first; key < last; column++, place = 0) {
            const K* k = a->keys + blocks[column] * a->keys_stride_block + head * a->keys_stride_head;
            const K* v = a->values + blocks[column] * a->values_stride_block + head * a->values_stride_head;
            for (; place < a->block_size && key < last; place++, key++) {
                rows.keys[key - tile] = k + place * a->keys_stride_token;
                rows.values[key - tile] = v + place * a->values_stride_token;
            }
        }
    }

    // Adds a tile to `sums`, and asks for the memory of the next one, or of the first of the piece that comes `after`.
    void add_tile(Scratch<K, C>& scratch, int64_t tile, const Piece& after, const Sums& sums) const {
        find(scratch.now, tile);
        if (tile + TILE < end)
            find(scratch.next, tile + TILE);
        else
            after.find(scratch.next, after.first_tile());
        bool is_packed = rows() > IN_PLACE_ROWS;
        if (takes_amx<C>() ? rows() > FEW_ROWS : is_packed)
            pack_keys(scratch.keys, scratch.now.keys, scratch.next.keys, a->head_dim, depth());
        if (takes_amx<C>() || is_packed)
            pack_values(scratch.values, scratch.now.values, scratch.next.values, a->head_dim);
        if constexpr (HAS_SCALES<K>)
            for (int key = 0; key < TILE; key++) {
                scratch.key_scales[key] = scale_of(scratch.now.keys[key], a->head_dim) * score_scale();
                scratch.value_scales[key] = scale_of(scratch.now.values[key], a->head_dim);
            }
#if HAS_AMX_BF16
        if constexpr (std::is_same_v<C, bf16>)
            if (takes_amx<C>()) {
                if (rows() <= FEW_ROWS) {
                    multiply_few_keys(scratch.scores, scratch.query_pairs, rows(), scratch.keys, scratch.now.keys,
                                      scratch.next.keys, a->head_dim, depth());
                    soften_all(scratch, scratch.probabilities, 0, rows(), tile, sums);
                    multiply_few_values(sums.values, width(), scratch.probabilities, scratch.values, a->head_dim);
                    return;
                }
                amx::RowTiles tiles(rows());
                for (int64_t first = 0; first < rows(); first += tiles.height) {
                    multiply_keys(scratch.scores, scratch.queries + first * depth(), scratch.keys, depth());
                    soften_all(scratch, scratch.probabilities, first, std::min(tiles.height, rows() - first), tile, sums);
                    multiply_values(sums.values + first * width(), width(), scratch.probabilities, scratch.values, a->head_dim);
                }
                return;
            }
#endif
        if constexpr (WIDENS<C>)
            if (is_widened())
                return add_packed_tile(scratch, scratch.widened_queries, scratch.widened_probabilities, tile, sums);
        if (is_packed) return add_packed_tile(scratch, scratch.queries, scratch.probabilities, tile, sums);
        if constexpr (IN_PLACE_ROWS > 0)
            for_row_tiles<IN_PLACE_ROWS>(rows(), [&](int64_t, auto count) {
                multiply_keys<count>(scratch.scores, scratch.queries, scratch.now.keys, scratch.next.keys, a->head_dim);
                soften_all(scratch, scratch.probabilities, 0, count, tile, sums);
                multiply_values<count>(sums.values, width(), scratch.probabilities, scratch.now.values, scratch.next.values,
                                       a->head_dim);
            });
    }

    // Adds a packed tile, of rows whose queries are X [rows, head_dim].
    template <class X>
    void add_packed_tile(Scratch<K, C>& scratch, const X* queries, X* probabilities, int64_t tile, const Sums& sums) const {
        for_row_tiles<TOGETHER<C, X>>(rows(), [&](int64_t first, auto count) {
            for (int panel = 0; panel < TILE / PANEL; panel++)
                multiply_panel<count>(scratch.scores + panel * PANEL, TILE, Inputs<X>{queries + first * a->head_dim, a->head_dim},
                                      scratch.keys + panel * panel_size<WIDE, C>(a->head_dim), a->head_dim, true);
            soften_all(scratch, probabilities, first, count, tile, sums);
            float* values = sums.values + first * width();
            for (int64_t i = 0; i < width(); i += PANEL)
                multiply_panel<count>(values + i, width(), Inputs<X>{probabilities, TILE},
                                      scratch.values + i / PANEL * panel_size<WIDE, C>(TILE), TILE, false);
        });
    }

    // What scores are multiplied by before a soft cap, or before they are powers of 2.
    float score_scale() const { return (float)(a->soft_cap != 0.0 ? a->scale / a->soft_cap : a->scale * LOG2_E); }

    template <class X>
    void soften_all(Scratch<K, C>& scratch, X* probabilities, int64_t first_row, int64_t rows, int64_t tile,
                    const Sums& sums) const {
        for (int64_t row = 0; row < rows; row++) soften(scratch, probabilities + row * TILE, row, first_row + row, tile, sums);
    }

    // Turns the scores of a row, the one of that `index` in the scratch, into probabilities relative to the largest so far.
    template <class X>
    void soften(Scratch<K, C>& scratch, X* probabilities, int64_t index, int64_t row, int64_t tile, const Sums& sums) const {
        static const float NUMBERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const Floats lanes = load16(NUMBERS);
        int64_t last = scratch.positions[row] - tile, first = a->first_key(scratch.positions[row]) - tile;
        Floats scores[TILE / 16], most = splat(MINUS_INFINITY);
        for (int i = 0; i < TILE / 16; i++) {
            Floats scales = splat(score_scale());
            if constexpr (HAS_SCALES<K>) scales = load_vector<Floats>(scratch.key_scales + 16 * i);
            Floats score = load_vector<Floats>(scratch.scores + index * TILE + 16 * i) * scales;
            if (a->soft_cap != 0.0) score = tanh16(score) * (float)(a->soft_cap * LOG2_E);
            if (last < TILE - 1 || first > 0) {
                Floats key = lanes + 16.0f * i;
                Ints visible = (key <= (float)last) & (key >= (float)first);
                score = choose(visible, score, splat(MINUS_INFINITY));
            }
            scores[i] = score;
            most = maximum(most, score);
        }
        float before = sums.largest[row], now = std::max(before, largest(most));
        if (now == MINUS_INFINITY) {
            std::fill_n(probabilities, TILE, X{});
            return;
        }
        Floats total = load_vector<Floats>(sums.totals + 16 * row);
        if (now != before) {
            float factor = exp2_16(splat(before - now))[0];
            sums.largest[row] = now;
            total *= factor;
            float* values = sums.values + row * width();
            for (int64_t i = 0; i < width(); i += 16) store_vector(values + i, load_vector<Floats>(values + i) * factor);
        }
        for (int i = 0; i < TILE / 16; i++) {
            Floats probability = exp2_16(scores[i] - now);
            total += probability;
            if constexpr (HAS_SCALES<K>) probability *= load_vector<Floats>(scratch.value_scales + 16 * i);
            store16(probabilities + 16 * i, std::is_same_v<X, C> ? probability : rounded<C>(probability));
        }
        store_vector(sums.totals + 16 * row, total);
    }

    // A sink joins the sum where it is finished, so that no chunk depends on whether it is the first. It may be so much
    // larger than the scores that its power is infinity: what the keys would get is then as good as 0.
    void write(const Sums& sums) const {
        for (int64_t row = 0; row < rows(); row++) {
            T* out = a->out + offset(row, a->out_stride_token, a->out_stride_head);
            float total = sum(load_vector<Floats>(sums.totals + 16 * row));
            if (a->sinks) {
                float sink = to_float(a->sinks[head * a->group() + row % a->group()]);
                total += exp2_16(add_product(-sums.largest[row], splat(sink), splat(LOG2_E)))[0];
            }
            for (int64_t i = 0; i < a->head_dim; i += 16)
                store16(out + i, load_vector<Floats>(sums.values + row * width() + i) / total);
        }
    }

    void write_zeros() const {
        for (int64_t row = 0; row < rows(); row++)
            std::memset(a->out + offset(row, a->out_stride_token, a->out_stride_head), 0, a->head_dim * sizeof(T));
    }

    // Computes all chunks of these rows, one after another.
    void compute(Scratch<K, C>& scratch, const Piece& after) const {
        Sums all = sums_in(scratch.sums[0]), chunk = sums_in(scratch.sums[1]);
        load_queries(scratch);
        for (int64_t tile = first_tile(); tile < end; tile += TILE) {
            const Sums& sums = tile / CHUNK == begin / CHUNK ? all : chunk;
            if (tile == first_tile() || tile % CHUNK == 0) clear(sums, padded_rows(), width());
            add_tile(scratch, tile, after, sums);
            bool ends_chunk = (tile + TILE) % CHUNK == 0 || tile + TILE >= end;
            if (ends_chunk && &sums == &chunk) join(all, chunk, rows(), width());
        }
        write(all);
    }

    // Computes the one chunk of a decode that is joined with others afterwards.
    void compute_chunk(Scratch<K, C>& scratch, const Piece& after, const Sums& sums) const {
        load_queries(scratch);
        clear(sums, padded_rows(), width());
        for (int64_t tile = first_tile(); tile < end; tile += TILE) add_tile(scratch, tile, after, sums);
    }

    // Memory of this piece's rows as `Sums`.
    Sums sums_in(float* memory) const { return {memory, memory + padded_rows(), memory + 17 * padded_rows()}; }
    int64_t size_of_sums() const { return padded_rows() * (width() + 17); }
};

// Turns the numbers that threads take, from the least to the largest, into pieces.
template <class T, class K>
class Pieces {
   public:
    explicit Pieces(const Attention<T, K>& a) : a_(a) {}

    // The piece of that number; a piece without rows and keys where there are no more.
    Piece<T, K> find(int64_t number) {
        int64_t seqs = a_.seqs.count();
        while (seq_ < seqs && number >= before_ + a_.pieces_of(seq_)) {
            before_ += a_.pieces_of(seq_);
            if (a_.is_joined(seq_)) joined_ += a_.pieces_of(seq_);
            seq_++;
        }
        if (seq_ == seqs) return {&a_, 0, 0, 0, 0, 0, 0};
        number -= before_;
        int64_t head = number % a_.kv_heads, part = number / a_.kv_heads;
        int64_t rows = a_.rows_of(seq_), seq_len = a_.seq_lens[seq_], step = a_.positions_per_tile();
        if (seq_len == 0) return {&a_, seq_, head, 0, rows, 0, 0};
        if (a_.is_joined(seq_)) {
            int64_t first = a_.first_key(seq_len - 1), start = (first / CHUNK + part) * CHUNK;
            return {&a_, seq_, head, 0, 1, std::max(first, start), std::min<int64_t>(seq_len, start + CHUNK), joined_ + number};
        }
        int64_t first_row = ((rows + step - 1) / step - 1 - part) * step;  // the last rows, which see the most keys, come first
        int64_t positions = std::min(step, rows - first_row), position = seq_len - rows + first_row;
        return {&a_, seq_, head, first_row, positions, a_.first_key(position), position + positions};
    }

   private:
    const Attention<T, K>& a_;
    int64_t seq_ = 0, before_ = 0, joined_ = 0;  // pieces, and those to be joined, of the sequences before `seq_`
};

template <class T, class K>
void paged_attention(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Attention<T, K>*>(arguments);
    using C = typename Operand<T>::Type;
    static thread_local const std::unique_ptr<Scratch<K, C>> own(new Scratch<K, C>);
    Scratch<K, C>& scratch = *own;
    int64_t seqs = a.seqs.count(), num_pieces = 0, num_joined = 0;
    for (int64_t seq = 0; seq < seqs; seq++) {
        num_pieces += a.pieces_of(seq);
        if (a.is_joined(seq)) num_joined += a.pieces_of(seq);
    }
    int64_t sums_size = Piece<T, K>{&a, 0, 0, 0, 1, 0, 0}.size_of_sums();
    float* sums = num_joined ? team.shared(num_joined * sums_size) : nullptr;

    Pieces<T, K> pieces(a);
    // The next piece is taken early, to ask for its memory.
    int64_t next = team.take();
    Piece<T, K> after = pieces.find(next);
    while (next < num_pieces) {
        Piece<T, K> piece = after;
        after = pieces.find(next = team.take());
        if (a.seq_lens[piece.seq] == 0)
            piece.write_zeros();
        else if (piece.joined < 0)
            piece.compute(scratch, after);
        else
            piece.compute_chunk(scratch, after, piece.sums_in(sums + piece.joined * sums_size));
    }
    if (num_joined == 0) return;
    team.barrier();
    int64_t heads = 0, from = 0;  // of the sequences before
    int64_t taken = team.take();
    for (int64_t seq = 0; seq < seqs; seq++) {
        if (!a.is_joined(seq)) continue;
        for (; taken < heads + a.kv_heads; taken = team.take()) {
            Piece<T, K> piece{&a, seq, taken - heads, 0, 1, 0, 0};
            auto chunk = [&](int64_t part) {
                return piece.sums_in(sums + (from + part * a.kv_heads + piece.head) * sums_size);
            };
            for (int64_t part = 1; part < a.chunks_of(seq); part++) join(chunk(0), chunk(part), piece.rows(), piece.width());
            piece.write(chunk(0));
        }
        heads += a.kv_heads;
        from += a.pieces_of(seq);
    }
}

}  // namespace

extern "C" {
void paged_attention(const void* arguments, Team& team) {
    paged_attention<Element, Element>(arguments, team);
}
void paged_attention_int8(const void* arguments, Team& team) {
    paged_attention<Element, int8_t>(arguments, team);
}
}
