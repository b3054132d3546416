// A dense layer's panels of 32 outputs times rows: the copying of inputs, and the product of a block of rows.
#pragma once

#include <algorithm>

#include "product.h"
#include "unrolled.h"

constexpr int PANEL = 16 * NARROW;

// Rows of a tile, of a layer of T whose inputs are arranged as X.
template <class T, class X>
constexpr int TILE_ROWS = (std::is_same_v<T, X> ? 1 : 2) * SUMS / NARROW;

// The outputs of a layer and what makes them, but for its inputs.
template <class T>
struct Layer {
    T* out;
    int64_t out_stride;
    const T* panels;  // see product.h; outputs beyond the last are zeros
    const T* bias;    // [outputs], or null
    int64_t inputs;
    int64_t outputs;

    const T* panel(int64_t number) const { return panels + number * panel_size<NARROW, T>(inputs); }
};

// Copies the first `rows` of ROWS rows as [inputs / INPUTS_TOGETHER][ROWS][INPUTS_TOGETHER], the order in which products
// read them, with zeros for the other rows and beyond the last input. `step` is the distance of two inputs, or pairs, and
// `row_at` returns where a row's inputs lie.
template <int ROWS, class T, class RowAt>
static inline void copy_tile(T* to, int64_t step, RowAt row_at, int64_t inputs, int64_t rows = ROWS) {
    constexpr int64_t together = INPUTS_TOGETHER<T>;
    if constexpr (sizeof(T) * together == 4) {
        for (int64_t k = 0; k < inputs; k += 16 * together) {
            Words words[16] = {};
            for (int row = 0; row < std::min<int64_t>(rows, ROWS); row++)
                words[row] = load_words(row_at(row) + k, inputs - k);
            transpose(words);
            for (int i = 0; i < 16 && k + i * together < inputs; i++, to += step)
                std::memcpy(to, &words[i], ROWS * together * sizeof(T));
        }
    } else {
        for (int64_t k = 0; k < inputs; k++, to += step)
            for (int row = 0; row < ROWS; row++) to[row] = row < rows ? row_at(row)[k] : T{};
    }
}

// Copies ROWS rows of bf16 as fp32, as [inputs][ROWS], with zeros for an input that makes pairs complete.
template <int ROWS, class RowAt>
static inline void copy_tile_widened(float* to, RowAt row_at, int64_t inputs) {
    for (int64_t k = 0; k < inputs; k += 16) {
        Words words[16] = {};
        for (int row = 0; row < ROWS; row++) words[row] = (Words)load_some(row_at(row) + k, inputs - k);
        transpose(words);
        for (int i = 0; i < 16 && k + i < padded<bf16>(inputs); i++, to += ROWS) std::memcpy(to, &words[i], ROWS * sizeof(float));
    }
}

// Copies all of a layer's rows, tile by tile; X says how. `row_at` returns where a row's inputs lie, and `is_wanted` whether to
// copy the next tile.
template <class T, class X, class RowAt, class IsWanted>
static inline void copy_tiles(X* to, RowAt row_at, int64_t inputs, int64_t rows, IsWanted is_wanted) {
    for_row_tiles<TILE_ROWS<T, X>>(rows, [&](int64_t first, auto num_rows) {
        if (!is_wanted()) return;
        auto row_of_tile = [&](int64_t row) { return row_at(first + row); };
        X* tile = to + first * padded<T>(inputs);
        if constexpr (std::is_same_v<T, X>)
            copy_tile<num_rows>(tile, INPUTS_TOGETHER<T> * num_rows, row_of_tile, inputs);
        else
            copy_tile_widened<num_rows>(tile, row_of_tile, inputs);
    });
}

// Where the sums of a panel go, and the bias that they get.
template <class T>
struct PanelOutputs {
    T* out;
    int64_t stride;
    int64_t count;
    Floats bias[2] = {};

    PanelOutputs(const Layer<T>& layer, int64_t panel)
        : out(layer.out + panel * PANEL), stride(layer.out_stride), count(std::min<int64_t>(PANEL, layer.outputs - panel * PANEL)) {
        if (!layer.bias) return;
        bias[0] = load_some(layer.bias + panel * PANEL, count);
        if (count > 16) bias[1] = load_some(layer.bias + panel * PANEL + 16, count - 16);
    }

    [[gnu::always_inline]] void store(int64_t row, Floats first, Floats second) const {
        store_some(out + row * stride, first + bias[0], count);
        if (count > 16) store_some(out + row * stride + 16, second + bias[1], count - 16);
    }
};

// Computes the outputs of a panel for rows whose inputs lie tile by tile in `tiles`, as `copy_tiles` orders them. The last
// of several tiles of rows finds the panel in a cache, and asks the idle memory for the panel `next`, unless that is null.
template <class T, class X>
static inline void multiply_panel(const Layer<T>& layer, const X* tiles, int64_t panel, const T* next, int64_t first_row,
                                  int64_t rows) {
    const T* weights = layer.panel(panel);
    PanelOutputs<T> outputs(layer, panel);
    auto multiply = [&](int64_t start, auto num_rows, auto prefetches) {
        Floats sums[num_rows][NARROW] = {};
        constexpr int64_t together = INPUTS_TOGETHER<X>;
        Inputs<X> inputs{tiles + start * padded<T>(layer.inputs), together, together * num_rows};
        add_product<num_rows, NARROW, prefetches>(sums, inputs, weights, padded<T>(layer.inputs), next);
        // Clang keeps arrays in memory whose places it does not know.
        unrolled<num_rows>([&](auto row) ALWAYS_INLINE { outputs.store(start + row, sums[row][0], sums[row][1]); });
    };
    for_row_tiles<TILE_ROWS<T, X>>(rows, [&](int64_t start, auto num_rows) {
        if constexpr (2 * num_rows >= TILE_ROWS<T, X> && INPUTS_TOGETHER<T> > 1) {  // as the tiles of several are
            if (start > 0 && start + num_rows == rows && next)
                return multiply(first_row + start, num_rows, std::true_type{});
        }
        multiply(first_row + start, num_rows, std::false_type{});
    });
}
