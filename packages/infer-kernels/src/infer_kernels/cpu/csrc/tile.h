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

// Panels of a tile's keys: the keys are the outputs, the head's elements the inputs. Asks for the next tile's keys
// meanwhile, whose places no processor guesses.
template <class T, class C>
void pack_keys(C* panels, const T* const (&keys)[TILE], const T* const (&next)[TILE], int64_t head_dim) {
    constexpr int64_t PER_WORD = 4 / sizeof(C);
    int64_t words = head_dim / PER_WORD;
    for (int64_t first = 0; first < TILE; first += 16) {
        C* panel = panels + first / PANEL * panel_size<WIDE, C>(head_dim) + first % PANEL * PER_WORD;
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

// Panels of a tile's values: the head's elements are the outputs, the keys the inputs. Asks for the next tile's values.
inline void pack_values(bf16* panels, const bf16* const (&values)[TILE], const bf16* const (&next)[TILE], int64_t head_dim) {
    for (int64_t key = 0; key < TILE; key += 2) {
        const bf16 *even = values[key], *odd = values[key + 1];
        for (int64_t i = 0; i < head_dim; i += 16) {
            Words low = widen(load_vector<Halves>(even + i)), high = widen(load_vector<Halves>(odd + i));
            __builtin_prefetch(next[key + i / 16 % 2] + i / 32 * 32, 0, 2);  // 32 of each row: a line
            bf16* panel = panels + i / PANEL * panel_size<WIDE, bf16>(TILE);
            store_vector(panel + key * PANEL + i % PANEL * 2, low | high << 16);
        }
    }
}

// Codes as pairs of bf16.
inline void pack_values(bf16* panels, const int8_t* const (&values)[TILE], const int8_t* const (&next)[TILE],
                        int64_t head_dim) {
    for (int64_t key = 0; key < TILE; key += 2) {
        const int8_t *even = values[key], *odd = values[key + 1];
        for (int64_t i = 0; i < head_dim; i += 16) {
            if (i % 64 == 0) {  // a line of each row
                __builtin_prefetch(next[key] + i, 0, 2);
                __builtin_prefetch(next[key + 1] + i, 0, 2);
            }
            bf16* panel = panels + i / PANEL * panel_size<WIDE, bf16>(TILE);
            store_vector(panel + key * PANEL + i % PANEL * 2, bf16_pairs(widen_codes(even + i), widen_codes(odd + i)));
        }
    }
}

template <class T>
inline void pack_values(float* panels, const T* const (&values)[TILE], const T* const (&next)[TILE], int64_t head_dim) {
    for (int64_t key = 0; key < TILE; key++)
        for (int64_t i = 0; i < head_dim; i += 16) {
            __builtin_prefetch(next[key] + i, 0, 2);
            float* panel = panels + i / PANEL * panel_size<WIDE, float>(TILE);
            store_vector(panel + key * PANEL + i % PANEL, load16(values[key] + i));
        }
}

// The scale of a row of codes, which follows its `head_dim` codes.
inline float scale_of(const int8_t* codes, int64_t head_dim) {
    float scale;
    std::memcpy(&scale, codes + head_dim, sizeof scale);
    return scale;
}

}  // namespace
