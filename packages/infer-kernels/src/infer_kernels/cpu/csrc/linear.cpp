// Dense layers: y = x @ weight.T + bias, summed in fp32 and rounded once.
#include <algorithm>

#include "product.h"
#include "team.h"

namespace {

constexpr int PANEL = 16 * NARROW;
constexpr int TILE_ROWS = SUMS / NARROW;

// Rows whose inputs stay in a core's cache while panel after panel meets them.
constexpr int64_t CACHED_BYTES = 1 << 19;
// From so many rows on, inputs are first copied into the order in which they are met. Rows lie a power of two apart, and
// would drive each other out of the cache.
constexpr int64_t COPIED_ROWS = 64;

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

// Copies a block of rows, tile by tile, as [inputs / INPUTS_TOGETHER][rows of the tile][INPUTS_TOGETHER].
template <class T>
void copy_rows(const Linear<T>& layer, T* copies, int64_t first_row, int64_t rows, const Team& team, int thread) {
    constexpr int64_t together = INPUTS_TOGETHER<T>;
    int64_t tile = 0;
    for_row_tiles<NARROW>(rows, [&](int64_t start, auto num_rows) {
        if (tile++ % team.size != thread) return;
        start += first_row;
        const T* x = layer.x + start * layer.x_stride;
        T* to = copies + start * padded<T>(layer.inputs);
        for (int64_t k = 0; k < layer.inputs; k += together)
            for (int row = 0; row < num_rows; row++, to += together)
                for (int i = 0; i < together; i++) to[i] = k + i < layer.inputs ? x[row * layer.x_stride + k + i] : T{};
    });
}

// The last of several tiles of rows finds the panel in a cache, and asks the idle memory for the `next` one.
template <class T>
void multiply_panel(const Linear<T>& layer, const T* copies, int64_t panel, int64_t next, int64_t first_row, int64_t rows) {
    const T* weights = layer.panels + panel * panel_size<NARROW, T>(layer.inputs);
    const T* next_weights = layer.panels + next * panel_size<NARROW, T>(layer.inputs);
    int64_t first = panel * PANEL, count = std::min<int64_t>(PANEL, layer.outputs - first);
    Floats bias[2] = {};
    if (layer.bias) {
        bias[0] = load_some(layer.bias + first, count);
        if (count > 16) bias[1] = load_some(layer.bias + first + 16, count - 16);
    }
    auto multiply = [&](int64_t start, auto num_rows, auto prefetches) {
        Floats sums[num_rows][NARROW] = {};
        Inputs<T> inputs{layer.x + start * layer.x_stride, layer.x_stride};
        if (copies) inputs = {copies + start * padded<T>(layer.inputs), INPUTS_TOGETHER<T>, INPUTS_TOGETHER<T> * num_rows};
        add_product<num_rows, NARROW, prefetches>(sums, inputs, weights, layer.inputs, next_weights);
        for (int row = 0; row < num_rows; row++) {
            T* out = layer.out + (start + row) * layer.out_stride + first;
            store_some(out, sums[row][0] + bias[0], count);
            if (count > 16) store_some(out + 16, sums[row][1] + bias[1], count - 16);
        }
    };
    for_row_tiles<NARROW>(rows, [&](int64_t start, auto num_rows) {
        if constexpr (2 * num_rows >= TILE_ROWS) {  // as the tiles of several are
            if (start > 0 && start + num_rows == rows && next != panel)
                return multiply(first_row + start, num_rows, std::true_type{});
        }
        multiply(first_row + start, num_rows, std::false_type{});
    });
}

template <class T>
void linear(const void* arguments, Team& team, int thread) {
    const auto& layer = *static_cast<const Linear<T>*>(arguments);
    int64_t rows = layer.rows.count();
    int64_t cached = CACHED_BYTES / (layer.inputs * (int64_t)sizeof(T)) / TILE_ROWS * TILE_ROWS;
    int64_t row_block = std::max<int64_t>(8 * TILE_ROWS, cached);
    int64_t panels = (layer.outputs + PANEL - 1) / PANEL;
    int64_t taken = std::max<int64_t>(1, panels / (team.size * 8));
    int64_t pieces = (panels + taken - 1) / taken, blocks = (rows + row_block - 1) / row_block;
    T* copies = nullptr;
    if (rows >= COPIED_ROWS) {
        team.reserve(rows * padded<T>(layer.inputs) * sizeof(T) / sizeof(float) + 1, thread);
        copies = reinterpret_cast<T*>(team.shared.data());
        for (int64_t first = 0; first < rows; first += row_block)
            copy_rows(layer, copies, first, std::min(row_block, rows - first), team, thread);
        team.barrier();
    }
    // With few rows, which wait for memory, the next piece is taken early, to ask for its weights.
    bool asks_ahead = rows < COPIED_ROWS;
    for (int64_t item = team.take(), next_item; item < blocks * pieces; item = asks_ahead ? next_item : team.take()) {
        int64_t first_row = item / pieces * row_block, first = item % pieces * taken;
        int64_t last = std::min(first + taken, panels) - 1, after = last;
        if (asks_ahead && (next_item = team.take()) < pieces) after = next_item * taken;
        for (int64_t panel = first; panel <= last; panel++)
            multiply_panel(layer, copies, panel, panel < last ? panel + 1 : after, first_row,
                           std::min(row_block, rows - first_row));
    }
}

}  // namespace

extern "C" {
void linear_fp32(const void* arguments, Team& team, int thread) { linear<float>(arguments, team, thread); }
void linear_bf16(const void* arguments, Team& team, int thread) { linear<bf16>(arguments, team, thread); }
void linear_fp16(const void* arguments, Team& team, int thread) { linear<fp16>(arguments, team, thread); }
}
