// A tile of keys and values, packed into the panels that products read.
#pragma once

#include <algorithm>

#include "product.h"

namespace {

constexpr int PANEL = 16 * WIDE;
constexpr int TILE = 64;

// Transposes 16 rows of 16 words, by exchanging ever smaller blocks off the diagonal.
inline void transpose(Words (&rows)[16]) {
#define EXCHANGE(STEP, UPPER, LOWER)                      \
    for (int i = 0; i < 16; i++) {                        \
        if (i & STEP) continue;                           \
        Words a = rows[i], b = rows[i + STEP];            \
        rows[i] = PICK(a, b, UPPER);                      \
        rows[i + STEP] = PICK(a, b, LOWER);               \
    }
#define UPPER8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define LOWER8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define UPPER4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define LOWER4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define UPPER2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define LOWER2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define UPPER1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define LOWER1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
    EXCHANGE(8, UPPER8, LOWER8)
    EXCHANGE(4, UPPER4, LOWER4)
    EXCHANGE(2, UPPER2, LOWER2)
    EXCHANGE(1, UPPER1, LOWER1)
}

// One word holds two inputs of bf16, or one of fp32.
inline Words load_words(const bf16* at, int64_t count) {
    if (count >= 32) return load_vector<Words>(at);
    bf16 padded[32] = {};
    std::memcpy(padded, at, count * sizeof(bf16));
    return load_vector<Words>(padded);
}
inline Words load_words(const float* at, int64_t count) { return (Words)load_some(at, count); }
inline Words load_words(const fp16* at, int64_t count) { return (Words)load_some(at, count); }

// Where the keys and values of a tile lie.
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
                rows[i] = load_words(keys[first + i] + at, head_dim - at);
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

template <class T>
inline void pack_values(float* panels, const T* const (&values)[TILE], const T* const (&next)[TILE], int64_t head_dim) {
    for (int64_t key = 0; key < TILE; key++)
        for (int64_t i = 0; i < head_dim; i += 16) {
            __builtin_prefetch(next[key] + i, 0, 2);
            float* panel = panels + i / PANEL * panel_size<WIDE, float>(TILE);
            store_vector(panel + key * PANEL + i % PANEL, load16(values[key] + i));
        }
}

}  // namespace
