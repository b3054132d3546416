// Products of up to 16 rows with a packed tile of keys and values, by matrix instructions (see amx.h).
#pragma once

#include "amx.h"
#include "tile.h"

namespace {

// Whether queries and probabilities of type C take matrix instructions, whatever the number of rows.
template <class C>
inline bool takes_amx() {
    return std::is_same_v<C, bf16> && HAS_AMX_BF16 && amx::is_granted();
}

constexpr int FEW_ROWS = 4;  // whose keys are not packed

#if HAS_AMX_BF16

constexpr int64_t PANEL_BYTES = PANEL * 2 * sizeof(bf16);  // of two inputs

// The sixteen outputs of panels from `output` on.
inline const bf16* part_of_panels(const bf16* panels, int64_t output, int64_t inputs) {
    return panels + output / PANEL * panel_size<WIDE, bf16>(inputs) + output % PANEL * 2;
}

// Scores of rows of `queries` [rows, depth] with a tile's keys, to `scores` [rows, TILE].
inline void multiply_keys(float* scores, const bf16* queries, const bf16* keys, int64_t depth) {
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
    const bf16* parts[4];
    for (int i = 0; i < 4; i++) parts[i] = part_of_panels(keys, 16 * i, depth);
    for (int64_t k = 0; k < depth; k += amx::INPUTS) {
        amx::load<4>(queries + k, depth * sizeof(bf16));
        amx::load<6>(parts[0] + k * PANEL, PANEL_BYTES);
        amx::multiply<0, 4, 6>();
        amx::load<7>(parts[1] + k * PANEL, PANEL_BYTES);
        amx::multiply<1, 4, 7>();
        amx::load<6>(parts[2] + k * PANEL, PANEL_BYTES);
        amx::multiply<2, 4, 6>();
        amx::load<7>(parts[3] + k * PANEL, PANEL_BYTES);
        amx::multiply<3, 4, 7>();
    }
    amx::store<0>(scores, TILE * sizeof(float));
    amx::store<1>(scores + 16, TILE * sizeof(float));
    amx::store<2>(scores + 32, TILE * sizeof(float));
    amx::store<3>(scores + 48, TILE * sizeof(float));
}

// Up to FEW_ROWS rows, keys are inputs where they lie, and queries are the weights: packing keys would take longer. A product of
// two numbers is the same either way, and so is the order of sums.
//
//     tiles 0, 1   scores [16 keys][rows]        tiles 2, 7   keys [16][32], or weights of values
//     tile 3       queries [16 pairs][rows][2]   tiles 4, 5   sums [rows][16]; tile 6 probabilities [rows][32]
inline amx::Config config_of_few(int64_t rows) {
    amx::Config config;
    for (int tile : {0, 1, 3}) config.row_bytes[tile] = (uint16_t)(4 * rows);
    for (int tile : {4, 5, 6}) config.rows[tile] = (uint8_t)rows;
    return config;
}

// Orders queries [rows, depth] as weights: [depth / 2][rows][2].
inline void pair_queries(bf16* pairs, const bf16* queries, int64_t rows, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2)
        for (int64_t row = 0; row < rows; row++, pairs += 2) std::memcpy(pairs, queries + row * depth + k, 2 * sizeof(bf16));
}

// Sixteen keys: the first of them, and the distance of two.
struct TileKeys {
    const bf16* first;
    int64_t stride;
};

// Returns sixteen keys where they lie, or as `copies` [16, depth] with zeros beyond the last element. Asks for the `next`.
template <class T>
TileKeys find_keys(bf16* copies, const T* const* keys, const T* const* next, int64_t head_dim, int64_t depth) {
    for (int i = 0; i < 16; i++)
        for (int64_t at = 0; at < head_dim; at += 64 / sizeof(T)) __builtin_prefetch(next[i] + at, 0, 2);
    if constexpr (std::is_same_v<T, bf16>) {
        int64_t stride = keys[1] - keys[0];
        bool is_even = depth == head_dim;
        for (int i = 2; i < 16; i++) is_even &= keys[i] - keys[i - 1] == stride;
        if (is_even) return {keys[0], stride};
    }
    for (int i = 0; i < 16; i++)
        for (int64_t at = 0; at < depth; at += 32)
            store_vector(copies + i * depth + at, load_words_as<bf16>(keys[i] + at, head_dim - at));
    return {copies, depth};
}

// Scores of at most FEW_ROWS rows of queries, ordered as `pairs`, with a tile's keys, to `scores` [rows, TILE].
template <class T>
void multiply_few_keys(float* scores, const bf16* pairs, int64_t rows, bf16* copies, const T* const (&keys)[TILE],
                       const T* const (&next)[TILE], int64_t head_dim, int64_t depth) {
    alignas(64) float by_key[TILE * FEW_ROWS];
    int64_t row_bytes = rows * sizeof(float);
    for (int first = 0; first < TILE; first += 32) {
        TileKeys a = find_keys(copies, keys + first, next + first, head_dim, depth);
        TileKeys b = find_keys(copies + 16 * depth, keys + first + 16, next + first + 16, head_dim, depth);
        amx::zero<0>();
        amx::zero<1>();
        for (int64_t k = 0; k < depth; k += amx::INPUTS) {
            amx::load<3>(pairs + k * rows, row_bytes);
            amx::load<2>(a.first + k, a.stride * sizeof(bf16));
            amx::multiply<0, 2, 3>();
            amx::load<7>(b.first + k, b.stride * sizeof(bf16));
            amx::multiply<1, 7, 3>();
        }
        amx::store<0>(by_key + first * rows, row_bytes);
        amx::store<1>(by_key + (first + 16) * rows, row_bytes);
    }
    for (int64_t row = 0; row < rows; row++)
        for (int key = 0; key < TILE; key++) scores[row * TILE + key] = by_key[key * rows + row];
}

// As `multiply_values`, with the tiles of few rows.
inline void multiply_few_values(float* sums, int64_t stride, const bf16* probabilities, const bf16* values, int64_t head_dim) {
    for (int64_t i = 0; i < head_dim; i += 32) {
        bool has_second = i + 16 < head_dim;
        amx::load<4>(sums + i, stride * sizeof(float));
        if (has_second) amx::load<5>(sums + i + 16, stride * sizeof(float));
        for (int64_t key = 0; key < TILE; key += amx::INPUTS) {
            amx::load<6>(probabilities + key, TILE * sizeof(bf16));
            amx::load<7>(part_of_panels(values, i, TILE) + key * PANEL, PANEL_BYTES);
            amx::multiply<4, 6, 7>();
            if (!has_second) continue;
            amx::load<2>(part_of_panels(values, i + 16, TILE) + key * PANEL, PANEL_BYTES);
            amx::multiply<5, 6, 2>();
        }
        amx::store<4>(sums + i, stride * sizeof(float));
        if (has_second) amx::store<5>(sums + i + 16, stride * sizeof(float));
    }
}

// Adds the products of `probabilities` [rows, TILE] with a tile's values to rows of `sums`, `stride` apart.
inline void multiply_values(float* sums, int64_t stride, const bf16* probabilities, const bf16* values, int64_t head_dim) {
    constexpr int64_t HALF = amx::INPUTS;  // of a tile's keys
    amx::load<4>(probabilities, TILE * sizeof(bf16));
    amx::load<5>(probabilities + HALF, TILE * sizeof(bf16));
    auto add = [&](auto tile, int64_t i) {
        const bf16* part = part_of_panels(values, i, TILE);
        amx::load<tile>(sums + i, stride * sizeof(float));
        amx::load<6>(part, PANEL_BYTES);
        amx::multiply<tile, 4, 6>();
        amx::load<7>(part + HALF * PANEL, PANEL_BYTES);
        amx::multiply<tile, 5, 7>();
        amx::store<tile>(sums + i, stride * sizeof(float));
    };
    for (int64_t i = 0; i < head_dim; i += 32) {  // two chains, which do not wait for each other
        add(std::integral_constant<int, 0>{}, i);
        if (i + 16 < head_dim) add(std::integral_constant<int, 1>{}, i + 16);
    }
}

#endif

}  // namespace
