// Dense layers: y = x @ weight.T + bias, summed in fp32 and rounded once; and the packing of their weights.
#include <algorithm>

#include "dense.h"
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
    const T* bias;    // [outputs], or null
    int64_t inputs;
    int64_t outputs;
};

// Copies every `every`-th tile of a block of rows, from the one of number `tile` on.
template <class T>
void copy_rows(const Linear<T>& layer, T* copies, int64_t first_row, int64_t rows, int tile, int every) {
    for_row_tiles<NARROW>(rows, [&](int64_t start, auto num_rows) {
        if (tile-- != 0) return;
        tile = every - 1;
        start += first_row;
        copy_tile<num_rows>(
            copies + start * padded<T>(layer.inputs), INPUTS_TOGETHER<T> * num_rows,
            [&](int64_t row) { return layer.x + (start + row) * layer.x_stride; }, layer.inputs);
    });
}

// Returns the inputs, tile by tile as `copy_tile` orders them.
template <class T>
const T* arrange_inputs(const Linear<T>& layer, int64_t rows, int64_t row_block, Team& team, int thread) {
    if (rows == 1 && layer.inputs == padded<T>(layer.inputs)) return layer.x;
    static thread_local std::vector<float> own;
    size_t needed = rows * padded<T>(layer.inputs) * sizeof(T) / sizeof(float) + 1;
    bool is_shared = rows >= SHARED_ROWS;
    if (is_shared)
        team.reserve(needed, thread);
    else if (own.size() < needed)
        own.resize(needed);
    T* copies = reinterpret_cast<T*>(is_shared ? team.shared.data() : own.data());
    for (int64_t first = 0; first < rows; first += row_block)
        copy_rows(layer, copies, first, std::min(row_block, rows - first), is_shared ? thread : 0, is_shared ? team.size : 1);
    if (is_shared) team.barrier();
    return copies;
}

template <class T>
void linear(const void* arguments, Team& team, int thread) {
    const auto& a = *static_cast<const Linear<T>*>(arguments);
    Layer<T> layer{a.out, a.out_stride, a.panels, a.bias, a.inputs, a.outputs};
    int64_t rows = a.rows.count();
    int64_t cached = CACHED_BYTES / (layer.inputs * (int64_t)sizeof(T)) / TILE_ROWS * TILE_ROWS;
    int64_t row_block = std::max<int64_t>(8 * TILE_ROWS, cached);
    const T* tiles = arrange_inputs(a, rows, row_block, team, thread);
    for_panels(team, thread, rows, row_block, (layer.outputs + PANEL - 1) / PANEL,
               [&](int64_t panel, int64_t next, int64_t first_row, int64_t taken) {
                   multiply_panel(layer, tiles, panel, next < 0 ? nullptr : layer.panel(next), first_row, taken);
               });
}

// A weight in panels.
template <class T>
struct Pack {
    Rows panels;
    T* packed;
    const T* weight;  // [outputs, inputs]
    int64_t stride;
    int64_t inputs;
    int64_t outputs;
};

template <class T>
void pack(const void* arguments, Team& team, int) {
    const auto& a = *static_cast<const Pack<T>*>(arguments);
    for (int64_t panel; (panel = team.take()) < a.panels.count();) {
        for (int64_t part = 0; part < NARROW; part++) {
            int64_t first = panel * PANEL + 16 * part;
            copy_tile<16>(
                a.packed + panel * panel_size<NARROW, T>(a.inputs) + part * 16 * INPUTS_TOGETHER<T>, PANEL * INPUTS_TOGETHER<T>,
                [&](int64_t row) { return a.weight + (first + row) * a.stride; }, a.inputs, a.outputs - first);
        }
    }
}

}  // namespace

extern "C" {
void linear(const void* arguments, Team& team, int thread) { linear<Element>(arguments, team, thread); }
void pack(const void* arguments, Team& team, int thread) { pack<Element>(arguments, team, thread); }
}
