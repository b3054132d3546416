// Products of a few rows with a tile's keys and values where they lie: packing a tile takes longer than multiplying so few
// rows. Each sum adds its terms in the order of a packed tile, so its bits are the same.
#pragma once

#include "tile.h"

namespace {

#if defined(__AVX512F__)
constexpr int IN_PLACE_ROWS = 4;  // up to which this is faster
#else
constexpr int IN_PLACE_ROWS = 0;  // registers are too few
#endif

// Adds the products with one input of fp32, or two of bf16, of sixteen outputs.
template <class C>
inline Floats add_word(Floats sum, Words word, const C* input) {
    if constexpr (std::is_same_v<C, bf16>) {
        uint32_t pair;
        std::memcpy(&pair, input, 4);
        return add_pairs(sum, word, pair);
    } else {
        return add_product(sum, as_floats(word), *input);
    }
}

// Scores of ROWS rows of `queries` [ROWS, head_dim] with a tile's keys, to `scores` [ROWS, TILE]. Asks for the next
// tile's keys meanwhile.
template <int ROWS, class T, class C>
void multiply_keys(float* scores, const C* queries, const T* const (&keys)[TILE], const T* const (&next)[TILE],
                   int64_t head_dim) {
    constexpr int64_t PER_WORD = 4 / sizeof(C);
    constexpr int GROUPS = 2;  // of sixteen keys, whose chains do not wait for each other
    int64_t words = head_dim / PER_WORD;
    for (int first = 0; first < TILE; first += 16 * GROUPS) {
        Floats sums[GROUPS][ROWS] = {};
        for (int64_t word = 0; word < words; word += 16) {
            int64_t at = word * PER_WORD, count = std::min<int64_t>(16, words - word);
            for (int group = 0; group < GROUPS; group++) {
                Words rows[16];
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) {
                    rows[i] = load_words_as<C>(keys[first + 16 * group + i] + at, head_dim - at);
                    __builtin_prefetch(next[first + 16 * group + i] + at, 0, 2);
                }
                transpose(rows);
                auto add = [&](int i) {
#pragma GCC unroll 4
                    for (int row = 0; row < ROWS; row++)
                        sums[group][row] = add_word(sums[group][row], rows[i], queries + row * head_dim + at + i * PER_WORD);
                };
                if (count == 16) {
#pragma GCC unroll 16
                    for (int i = 0; i < 16; i++) add(i);
                } else {
                    for (int i = 0; i < count; i++) add(i);
                }
            }
        }
        for (int group = 0; group < GROUPS; group++)
            for (int row = 0; row < ROWS; row++) store_vector(scores + row * TILE + first + 16 * group, sums[group][row]);
    }
}

// Adds the products of `probabilities` [ROWS, TILE] with a tile's values to rows of `sums`, `stride` apart. Asks for the
// next tile's values meanwhile.
template <int ROWS, class T, class C>
void multiply_values(float* sums, int64_t stride, const C* probabilities, const T* const (&values)[TILE],
                     const T* const (&next)[TILE], int64_t head_dim) {
    constexpr int64_t PER_WORD = 4 / sizeof(C), PER_LINE = 64 / sizeof(T);
    constexpr int TOGETHER = 4;  // vectors of each row's sums: chains that do not wait for each other
    auto add = [&](int64_t first, auto vectors) {
        Floats chains[ROWS][vectors];
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < vectors; i++) chains[row][i] = load_vector<Floats>(sums + row * stride + first + 16 * i);
        for (int key = 0; key < TILE; key += PER_WORD) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) {
                Words word = load_value_words<C>(values, key, first + 16 * i);
                if (16 * i % PER_LINE == 0)
                    for (int each = 0; each < PER_WORD; each++) __builtin_prefetch(next[key + each] + first + 16 * i, 0, 2);
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; row++)
                    chains[row][i] = add_word(chains[row][i], word, probabilities + row * TILE + key);
            }
        }
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < vectors; i++) store_vector(sums + row * stride + first + 16 * i, chains[row][i]);
    };
    int64_t first = 0;
    for (; first + 16 * TOGETHER <= head_dim; first += 16 * TOGETHER) add(first, std::integral_constant<int, TOGETHER>{});
    for (; first < head_dim; first += 16) add(first, std::integral_constant<int, 1>{});
}

}  // namespace
