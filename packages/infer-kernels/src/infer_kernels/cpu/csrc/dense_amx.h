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

// What a product asks the caches for at each of its steps: rows of the outputs that it will store, and lines of the next panel.
struct TilePrefetches {
    const bf16* outputs;
    int64_t stride, rows, rows_of_step;
    const bf16* panel;  // or null
    int64_t lines_of_step;

    [[gnu::always_inline]] void ask() {
        for (int64_t i = 0; i < rows_of_step && rows > 0; i++, rows--, outputs += stride) __builtin_prefetch(outputs, 1, 3);
        if (!panel) return;
        for (int64_t i = 0; i < lines_of_step; i++, panel += LINE) __builtin_prefetch(panel, 0, 2);
    }
    static constexpr int64_t LINE = 64 / sizeof(bf16);  // of a cache
};

struct NoPrefetches {
    void ask() {}
};

// Adds the products of `steps` * amx::INPUTS inputs.
template <bool HAS_SECOND, class Prefetches>
static inline void add_tiles(const bf16* first, const bf16* second, int64_t stride, const bf16* weights, int64_t steps,
                             Prefetches prefetches) {
    constexpr int64_t STEP = amx::INPUTS, ROW_BYTES = PANEL * 2 * sizeof(bf16);
    for (; steps > 0; steps--, first += STEP, second += STEP, weights += STEP * PANEL) {
        prefetches.ask();
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
    }
}

// Computes the outputs of a panel for `count` tiles of rows from `first_tile` on. Several pairs of tiles ask for the panel `next`
// meanwhile, a part each, unless it is null. The sums of a tile of rows are stored and rounded before those of the next, which
// takes less time than storing all four tiles first.
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
    alignas(64) float sums[amx::MOST_ROWS][PANEL];  // of one tile of rows after the other
    int64_t pairs = (count + 1) / 2, lines_of_step = (STEP * PANEL / TilePrefetches::LINE + pairs - 1) / pairs;
    auto multiply = [&](int64_t tile, auto has_second, auto asks) {
        const bf16 *first = x.first + tiles.first(tile) * x.stride, *second = first;
        amx::zero<0>();
        amx::zero<1>();
        if constexpr (has_second) {
            second = x.first + tiles.first(tile + 1) * x.stride;
            amx::zero<2>();
            amx::zero<3>();
        }
        if constexpr (asks) {
            int64_t rows = (1 + has_second) * tiles.height;
            int64_t begin = (tile - first_tile) / 2 * lines_of_step * steps * TilePrefetches::LINE;
            const bf16* part = next && begin < steps * STEP * PANEL ? next + begin : nullptr;
            add_tiles<has_second>(first, second, x.stride, weights, steps,
                                  TilePrefetches{outputs.out + tile * tiles.height * outputs.stride, outputs.stride, rows,
                                                 rows / std::max<int64_t>(steps, 1) + 1, part, lines_of_step});
        } else {
            add_tiles<has_second>(first, second, x.stride, weights, steps, NoPrefetches{});
        }
        if (rest) add_tiles<has_second>(first + steps * STEP, second + steps * STEP, x.stride, last_weights, 1, NoPrefetches{});
        auto store = [&](auto each) {
            amx::store<2 * each>(sums[0], SUMS_BYTES);
            amx::store<2 * each + 1>(sums[0] + 16, SUMS_BYTES);
            int64_t first_row = tiles.first(tile + each), end = first_row + tiles.height;
            for (int64_t row = (tile + each) * tiles.height; row < end; row++) {
                const float* of_row = sums[row - first_row];
                outputs.store(row, load16(of_row), load16(of_row + 16));
            }
        };
        store(std::integral_constant<int, 0>{});
        if constexpr (has_second) store(std::integral_constant<int, 1>{});
    };
    auto multiply_all = [&](auto asks) {
        for (int64_t tile = first_tile, end = first_tile + count; tile < end; tile += 2) {
            if (tile + 1 < end)
                multiply(tile, std::true_type{}, asks);
            else
                multiply(tile, std::false_type{}, asks);
        }
    };
    if (pairs > 1)
        multiply_all(std::true_type{});
    else
        multiply_all(std::false_type{});
}

#endif
