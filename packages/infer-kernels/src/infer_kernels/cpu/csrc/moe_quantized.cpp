// The products of a mixture's experts whose weights have eight or four bits (see moe.cpp and quantized.h).
#include "moe.h"
#include "quantized.h"

namespace {

template <class T>
struct ProductsQuantized {
    Rows tokens;
    T* out;  // [places, outputs]
    int64_t out_stride;
    const T* x;  // [tokens, inputs], or, where `chosen` is 0, [places, inputs]
    int64_t x_stride;
    const uint8_t* panels;  // [experts] layers in panels
    OrNull<const T> bias;  // [experts, outputs]
    int64_t bias_stride;
    int64_t outputs;
    int64_t chosen;
    QuantizedLayout layout;
    Routing routing;
};

template <class T>
void products_quantized(const void* arguments, Team& team) {
    const auto& a = *static_cast<const ProductsQuantized<T>*>(arguments);
    static thread_local std::vector<float> own;
    size_t needed = quantized_size(a.layout, BLOCK_ROWS);
    if (own.size() < needed) own.resize(needed);
    QuantizedRows x = place_quantized(a.layout, BLOCK_ROWS, own.data());
    int64_t panels = (a.outputs + PANEL - 1) / PANEL, panel_bytes = a.layout.panel_bytes();
    QuantizedProducts products(a.layout, BLOCK_ROWS);
    for_expert_panels(
        team, a.routing, panels,
        [&](const Block& block) {
            products.forget_rows();
            for (int64_t row = 0; row < block.rows; row++) {
                int64_t place = block.first + row;
                int64_t at = a.chosen ? a.routing.pair_of_place[place] / a.chosen : place;
                quantize_row(a.layout, x, row, a.x + at * a.x_stride);
            }
        },
        [&](const Block& block, int64_t first, int64_t last) {
            QuantizedLayer<T> layer{a.out + block.first * a.out_stride, a.out_stride,
                                    a.panels + block.expert * panels * panel_bytes,
                                    a.bias ? a.bias + block.expert * a.bias_stride : nullptr, a.outputs};
            for (int64_t panel = first; panel <= last; panel++) {
                const uint8_t* next = panel < last ? layer.panels + (panel + 1) * panel_bytes : nullptr;
                layer.multiply(products, a.layout, x, panel, next, 0, block.rows);
            }
        });
}

}  // namespace

extern "C" {
void moe_products_quantized(const void* arguments, Team& team) {
    products_quantized<Element>(arguments, team);
}
}
