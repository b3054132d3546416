// A tile of keys and values, packed into the panels that products read.
#pragma once

#include <algorithm>

#include "product.h"

namespace {

constexpr int PANEL = 16 * WIDE;
constexpr int TILE = 64;

// Where the keys and values of a tile lie: elements, or codes of eight bits with their scale behind them.
template <class T>
struct TileRows {
    const T* keys[TILE];
    const T* values[TILE];
};

// Panels of a tile's keys: the keys are the outputs, the head's elements the inputs, with zeros up to `depth`. Asks for the
// next tile's keys meanwhile, whose places no processor guesses.
template <class T, class C>
void pack_keys(C* panels, const T* const (&keys)[TILE], const T* const (&next)[TILE], int64_t head_dim, int64_t depth) {
    constexpr int64_t PER_WORD = 4 / sizeof(C);
    int64_t words = depth / PER_WORD;
    for (int64_t first = 0; first < TILE; first += 16) {
        C* panel = panels + first / PANEL * panel_size<WIDE, C>(depth) + first % PANEL * PER_WORD;
        for (int64_t word = 0; word < words; word += 16) {
            int64_t at = word * PER_WORD;
            Words rows[16];
            for (int i = 0; i < 16; i++) {
                rows[i] = load_words_as<C>(keys[first + i] + at, head_dim - at);
                __builtin_prefetch(next[first + i] + at, 0, 2);
            }
            transpose(rows);
            for (int i = 0; i < std::min<int64_t>(16, words - word); i++)
                store_vector(panel + (word + i) * PANEL * PER_WORD, rows[i]);
        }
    }
}

// Sixteen words of a tile's values from element `at` on: those of one key as fp32, or of two as pairs of bf16.
template <class C, class T>
inline Words load_value_words(const T* const (&values)[TILE], int key, int64_t at) {
    if constexpr (sizeof(C) == 4) {
        return (Words)load16(values[key] + at);
    } else if constexpr (std::is_same_v<T, bf16>) {
        Words low = widen(load_vector<Halves>(values[key] + at)), high = widen_upper(load_vector<Halves>(values[key + 1] + at));
        return low | high;
    } else {
        return bf16_pairs(widen_codes(values[key] + at), widen_codes(values[key + 1] + at));
    }
}

// Panels of a tile's values: the head's elements are the outputs, the keys the inputs. Asks for the next tile's values.
template <class T, class C>
void pack_values(C* panels, const T* const (&values)[TILE], const T* const (&next)[TILE], int64_t head_dim) {
    constexpr int64_t PER_WORD = 4 / sizeof(C), PER_LINE = 64 / sizeof(T);
    for (int key = 0; key < TILE; key += PER_WORD)
        for (int64_t i = 0; i < head_dim; i += 16) {
            if (i % PER_LINE == 0)
                for (int each = 0; each < PER_WORD; each++) __builtin_prefetch(next[key + each] + i, 0, 2);
            C* panel = panels + i / PANEL * panel_size<WIDE, C>(TILE);
            store_vector(panel + key * PANEL + i % PANEL * PER_WORD, load_value_words<C>(values, key, i));
        }
}

// Adds the products of ROWS rows of inputs with a panel to rows of `sums`, `stride` apart; or stores them.
template <int ROWS, class X, class C>
inline void multiply_panel(float* sums, int64_t stride, Inputs<X> x, const C* panel, int64_t inputs, bool is_first) {
    Floats products[ROWS][WIDE] = {};
    if (!is_first)
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < WIDE; i++) products[row][i] = load_vector<Floats>(sums + row * stride + 16 * i);
    add_product<ROWS, WIDE>(products, x, panel, inputs);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDE; i++) store_vector(sums + row * stride + 16 * i, products[row][i]);
}

// The scale of a row of codes, which follows its `head_dim` codes.
inline float scale_of(const int8_t* codes, int64_t head_dim) {
    float scale;
    std::memcpy(&scale, codes + head_dim, sizeof scale);
    return scale;
}

}  // namespace
