// Dense layers: y = x @ weight.T + bias, summed in fp32 and rounded once; and the packing of their weights.
#include <algorithm>

#include "dense_amx.h"
#include "panel_loop.h"

namespace {

template <class T>
struct Linear {
    Rows rows;
    T* out;
    int64_t out_stride;
    const T* x;
    int64_t x_stride;
    const T* panels;  // see product.h; outputs beyond the last are zeros
    OrNull<const T> bias;  // [outputs]
    int64_t inputs;
    int64_t outputs;
};

// Returns the inputs, tile by tile as `copy_tiles` orders them.
template <class X, class T>
const X* arrange_inputs(const Linear<T>& layer, int64_t rows, int64_t row_block, Team& team) {
    if constexpr (std::is_same_v<T, X>)
        if (rows == 1 && layer.inputs == padded<T>(layer.inputs)) return layer.x;
    Arrangement arranged(team, rows, rows * padded<T>(layer.inputs) * sizeof(X) / sizeof(float) + 1);
    X* copies = reinterpret_cast<X*>(arranged.memory);
    for (int64_t block = 0; block < rows; block += row_block)
        copy_tiles<T>(
            copies + block * padded<T>(layer.inputs), [&](int64_t row) { return layer.x + (block + row) * layer.x_stride; },
            layer.inputs, std::min(row_block, rows - block), [&] { return arranged.is_mine(); });
    arranged.end();
    return copies;
}

#if HAS_AMX_BF16
// Returns the inputs where they lie, unless a row's are no multiple of what a tile holds.
TileInputs tile_inputs(const Linear<bf16>& layer, int64_t rows, Team& team) {
    int64_t inputs = inputs_of_tiles(layer.inputs);
    if (inputs == layer.inputs) return {layer.x, layer.x_stride};
    Arrangement arranged(team, rows, rows * inputs * sizeof(bf16) / sizeof(float) + 1);
    bf16* copies = reinterpret_cast<bf16*>(arranged.memory);
    for (int64_t row = 0; row < rows; row++)
        if (arranged.is_mine()) copy_tile_inputs(copies + row * inputs, layer.x + row * layer.x_stride, layer.inputs);
    arranged.end();
    return {copies, inputs};
}

void multiply_in_tiles(const Linear<bf16>& a, const Layer<bf16>& layer, Team& team) {
    constexpr int64_t CACHED_TILE_BYTES = 1 << 20;  // every CPU with tiles has 2 MiB for each core
    amx::RowTiles tiles(a.rows.count());
    TileInputs x = tile_inputs(a, tiles.rows, team);
    int64_t cached = CACHED_TILE_BYTES / (a.inputs * (int64_t)sizeof(bf16)) / (2 * amx::MOST_ROWS) * 2;
    amx::configure(tiles.height);
    for_panels(team, tiles.count, std::max<int64_t>(8, cached), (layer.outputs + PANEL - 1) / PANEL,
               [&](int64_t panel, int64_t next, int64_t first_tile, int64_t taken) {
                   multiply_panel_in_tiles(layer, x, tiles, panel, next < 0 ? nullptr : layer.panel(next), first_tile, taken);
               });
}
#endif

template <class X, class T>
void multiply_rows(const Linear<T>& a, const Layer<T>& layer, int64_t rows, Team& team) {
    constexpr int MOST = TILE_ROWS<T, X>;
    int64_t cached = CACHED_BYTES / (layer.inputs * (int64_t)sizeof(X)) / MOST * MOST;
    int64_t row_block = std::max<int64_t>(8 * MOST, cached);
    const X* tiles = arrange_inputs<X>(a, rows, row_block, team);
    for_panels(team, rows, row_block, (layer.outputs + PANEL - 1) / PANEL,
               [&](int64_t panel, int64_t next, int64_t first_row, int64_t taken) {
                   multiply_panel(layer, tiles, panel, next < 0 ? nullptr : layer.panel(next), first_row, taken);
               });
}

template <class T>
void linear(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Linear<T>*>(arguments);
    Layer<T> layer{a.out, a.out_stride, a.panels, a.bias, a.inputs, a.outputs};
    int64_t rows = a.rows.count();
#if HAS_AMX_BF16
    if constexpr (std::is_same_v<T, bf16>)
        if (amx::is_granted() && rows > 0) return multiply_in_tiles(a, layer, team);
#endif
    if constexpr (WIDENS<T>)
        if (rows > TILE_ROWS<T, T>) return multiply_rows<float>(a, layer, rows, team);
    multiply_rows<T>(a, layer, rows, team);
}

// A weight in panels.
template <class T>
struct Pack {
    Rows panels;
    T* packed;
    const T* weight;  // [outputs, inputs]
    int64_t weight_stride;
    int64_t inputs;
    int64_t outputs;
};

template <class T>
void pack(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Pack<T>*>(arguments);
    for (int64_t panel; (panel = team.take()) < a.panels.count();) {
        for (int64_t part = 0; part < NARROW; part++) {
            int64_t first = panel * PANEL + 16 * part;
            copy_tile<16>(
                a.packed + panel * panel_size<NARROW, T>(a.inputs) + part * 16 * INPUTS_TOGETHER<T>, PANEL * INPUTS_TOGETHER<T>,
                [&](int64_t row) { return a.weight + (first + row) * a.weight_stride; }, a.inputs, a.outputs - first);
        }
    }
}

}  // namespace

extern "C" {
void linear(const void* arguments, Team& team) { linear<Element>(arguments, team); }
void pack(const void* arguments, Team& team) { pack<Element>(arguments, team); }
}
