// A panel of bf16 times a block of rows, by matrix instructions (see amx.h): two tiles of rows meet both halves of the panel
// at once, from the first input to the last.
#pragma once

#include "amx.h"
#include "dense.h"

#if HAS_AMX_BF16

// Rows of inputs, each with zeros up to a multiple of amx::INPUTS.
struct TileInputs {
    const bf16* first;
    int64_t stride;
};

static inline int64_t inputs_of_tiles(int64_t inputs) { return (inputs + amx::INPUTS - 1) / amx::INPUTS * amx::INPUTS; }

// Copies a row, with zeros beyond the last input.
static inline void copy_tile_inputs(bf16* to, const bf16* from, int64_t inputs) {
    std::memcpy(to, from, inputs * sizeof(bf16));
    std::memset(to + inputs, 0, (inputs_of_tiles(inputs) - inputs) * sizeof(bf16));
}

// Adds the products of `steps` * amx::INPUTS inputs. Asks for the panel `next` meanwhile, unless that is null.
template <bool HAS_SECOND>
static inline void add_tiles(const bf16* first, const bf16* second, int64_t stride, const bf16* weights, int64_t steps,
                             const bf16* next) {
    constexpr int64_t STEP = amx::INPUTS, ROW_BYTES = PANEL * 2 * sizeof(bf16);
    for (; steps > 0; steps--, first += STEP, second += STEP, weights += STEP * PANEL) {
        amx::load<4>(first, stride * sizeof(bf16));
        amx::load<6>(weights, ROW_BYTES);
        amx::multiply<0, 4, 6>();
        amx::load<7>(weights + PANEL, ROW_BYTES);
        amx::multiply<1, 4, 7>();
        if constexpr (HAS_SECOND) {
            amx::load<5>(second, stride * sizeof(bf16));
            amx::multiply<2, 5, 6>();
            amx::multiply<3, 5, 7>();
        }
        if (next) {
            for (int64_t i = 0; i < STEP * PANEL; i += 32) __builtin_prefetch(next + i, 0, 2);
            next += STEP * PANEL;
        }
    }
}

// Computes the outputs of a panel for `count` tiles of rows from `first_tile` on. The last tiles of several find the panel in
// a cache, and ask the idle memory for the panel `next`, unless that is null.
static inline void multiply_panel_in_tiles(const Layer<bf16>& layer, const TileInputs& x, const amx::RowTiles& tiles,
                                           int64_t panel, const bf16* next, int64_t first_tile, int64_t count) {
    constexpr int64_t STEP = amx::INPUTS, SUMS_BYTES = PANEL * sizeof(float);
    const bf16* weights = layer.panel(panel);
    int64_t steps = layer.inputs / STEP, rest = padded<bf16>(layer.inputs % STEP);
    alignas(64) bf16 last_weights[STEP * PANEL];  // with zeros, where inputs are no multiple of STEP
    if (rest) {
        std::memcpy(last_weights, weights + steps * STEP * PANEL, rest * PANEL * sizeof(bf16));
        std::memset(last_weights + rest * PANEL, 0, (STEP - rest) * PANEL * sizeof(bf16));
    }
    PanelOutputs<bf16> outputs(layer, panel);
    alignas(64) float sums[2][amx::MOST_ROWS][PANEL];
    auto multiply = [&](int64_t tile, auto has_second, const bf16* asked) {
        const bf16 *first = x.first + tiles.first(tile) * x.stride, *second = first;
        amx::zero<0>();
        amx::zero<1>();
        if constexpr (has_second) {
            second = x.first + tiles.first(tile + 1) * x.stride;
            amx::zero<2>();
            amx::zero<3>();
        }
        add_tiles<has_second>(first, second, x.stride, weights, steps, asked);
        if (rest) add_tiles<has_second>(first + steps * STEP, second + steps * STEP, x.stride, last_weights, 1, nullptr);
        amx::store<0>(sums[0][0], SUMS_BYTES);
        amx::store<1>(sums[0][0] + 16, SUMS_BYTES);
        if constexpr (has_second) {
            amx::store<2>(sums[1][0], SUMS_BYTES);
            amx::store<3>(sums[1][0] + 16, SUMS_BYTES);
        }
        for (int64_t each = 0; each <= has_second; each++) {
            int64_t first_row = tiles.first(tile + each), end = first_row + tiles.height;
            for (int64_t row = (tile + each) * tiles.height; row < end; row++) {
                const float* of_row = sums[each][row - first_row];
                outputs.store(row, load16(of_row), load16(of_row + 16));
            }
        }
    };
    for (int64_t tile = first_tile, end = first_tile + count; tile < end; tile += 2) {
        const bf16* asked = tile > first_tile && tile + 2 >= end ? next : nullptr;
        if (tile + 1 < end)
            multiply(tile, std::true_type{}, asked);
        else
            multiply(tile, std::false_type{}, asked);
    }
}

#endif
