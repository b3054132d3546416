// Products of quantized inputs (quantized_rows.h) with weights of eight and four bits (quantized_layout.h).
//
//     y[o] = x_scale * sum over groups of (scale[o] * sum over the group of ((code[o, i] - zero[o]) * x_code[i])
//                                          - minimum[o] * sum over the group of x_code[i])
//
// Sums of a group are whole numbers, the same in any order; those of groups are added from the first to the last, then those of
// words of outliers, each product with a scale or minimum and sum rounded once. So a row's bits depend on its own row alone,
// whatever instructions compute it.
#pragma once

#include <vector>

#include "quantized_rows.h"

constexpr int MOST_QUANTIZED_ROWS = 32;  // that one call multiplies

struct OutlierList;

// The products of one thread with a weight; ready for tiles of `rows` rows.
class QuantizedProducts {
   public:
    QuantizedProducts(const QuantizedLayout& layout, int64_t rows);
    ~QuantizedProducts();

    // Multiplies `rows` rows, at most MOST_QUANTIZED_ROWS, from `first_row` on, with a panel: sums [rows][32]. Asks for the
    // panel `next` meanwhile, unless that is null.
    void multiply(const uint8_t* panel, const uint8_t* next, const QuantizedRows& x, int64_t first_row, int64_t rows, float* sums);

    // To be called when other rows lie where those were that have been multiplied.
    void forget_rows();

   private:
    template <Encoding ENCODING>
    void multiply(const uint8_t* panel, const uint8_t* next, const QuantizedRows& x, int64_t first_row, int64_t rows, float* sums);

    // The list of some rows, made when they meet their first panel.
    const OutlierList& list_of(const QuantizedRows& x, int64_t first_row, int64_t rows);

    const QuantizedLayout& layout_;
    bool has_tiles_;
    std::vector<OutlierList>& lists_;
    size_t num_lists_ = 0, last_list_ = 0;
};

// The outputs of a layer with a quantized weight, but for its inputs.
template <class T>
struct QuantizedLayer {
    T* out;
    int64_t out_stride;
    const uint8_t* panels;
    const T* bias;  // [outputs], or null
    int64_t outputs;

    // Computes the outputs of a panel, as `multiply_panel` of dense.h.
    void multiply(QuantizedProducts& products, const QuantizedLayout& layout, const QuantizedRows& x, int64_t panel,
                  const uint8_t* next, int64_t first_row, int64_t rows) const {
        int64_t first = panel * PANEL, count = std::min<int64_t>(PANEL, outputs - first);
        Floats added[2] = {};
        if (bias) {
            added[0] = load_some(bias + first, count);
            if (count > 16) added[1] = load_some(bias + first + 16, count - 16);
        }
        alignas(LINE) float sums[MOST_QUANTIZED_ROWS * PANEL];
        for (int64_t start = 0; start < rows; start += MOST_QUANTIZED_ROWS) {
            int64_t taken = std::min<int64_t>(MOST_QUANTIZED_ROWS, rows - start);
            bool is_last = start + taken == rows;
            products.multiply(panels + panel * layout.panel_bytes(), is_last ? next : nullptr, x, first_row + start, taken, sums);
            for (int64_t row = 0; row < taken; row++) {
                T* to = out + (first_row + start + row) * out_stride + first;
                store_some(to, load16(sums + row * PANEL) + added[0], count);
                if (count > 16) store_some(to + 16, load16(sums + row * PANEL + 16) + added[1], count - 16);
            }
        }
    }
};
