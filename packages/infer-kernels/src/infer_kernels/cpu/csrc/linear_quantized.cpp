// Dense layers and embeddings whose weights have eight, six or four bits; and the packing of these weights (see quantized.h).
#include "panel_loop.h"
#include "quantized.h"

namespace {

template <class T>
struct LinearQuantized {
    Rows rows;
    T* out;
    int64_t out_stride;
    const T* x;
    int64_t x_stride;
    const uint8_t* panels;
    OrNull<const T> bias;  // [outputs]
    int64_t outputs;
    QuantizedLayout layout;
};

// Returns the quantized inputs of all rows.
template <class T>
QuantizedRows quantize_inputs(const LinearQuantized<T>& a, int64_t rows, Team& team) {
    Arrangement arranged(team, rows, quantized_size(a.layout, rows));
    QuantizedRows quantized = place_quantized(a.layout, rows, arranged.memory);
    for (int64_t row = 0; row < rows; row++)
        if (arranged.is_mine()) quantize_row(a.layout, quantized, row, a.x + row * a.x_stride);
    arranged.end();
    return quantized;
}

template <class T>
void linear_quantized(const void* arguments, Team& team) {
    const auto& a = *static_cast<const LinearQuantized<T>*>(arguments);
    int64_t rows = a.rows.count(), panel_bytes = a.layout.panel_bytes();
    QuantizedRows x = quantize_inputs(a, rows, team);
    QuantizedProducts products(a.layout, rows);
    QuantizedLayer<T> layer{a.out, a.out_stride, a.panels, a.bias, a.outputs};
    int64_t cached = CACHED_BYTES / x.stride / MOST_QUANTIZED_ROWS * MOST_QUANTIZED_ROWS;
    int64_t row_block = std::max<int64_t>(4 * MOST_QUANTIZED_ROWS, cached);
    for_panels(team, rows, row_block, (a.outputs + PANEL - 1) / PANEL,
               [&](int64_t panel, int64_t next, int64_t first_row, int64_t taken) {
                   const uint8_t* asked = next < 0 ? nullptr : a.panels + next * panel_bytes;
                   layer.multiply(products, a.layout, x, panel, asked, first_row, taken);
               });
}

// A weight in panels.
struct PackQuantized {
    Rows panels;
    uint8_t* packed;
    const uint8_t* values;  // [outputs, bytes of a row's codes]
    int64_t values_row_bytes;
    const uint8_t* scales;  // [outputs, groups], of the layout's type
    int64_t scales_row_bytes;
    // [outputs, groups] zeros, of int8 signed, of int4 unsigned bytes, or minimums as scales are
    OrNull<const uint8_t> beside;
    int64_t beside_row_bytes;
    OrNull<const uint8_t> factors;  // [outputs, blocks] fp16, of scales
    int64_t factors_row_bytes;
    OrNull<const uint8_t> minimum_factors;  // likewise, where there are minimums too
    int64_t minimum_factors_row_bytes;
    int64_t outputs;
    QuantizedLayout layout;
};

// Four bytes of `values` from `at` on, less than four near the end of a group.
uint32_t load_codes(const uint8_t* at, int64_t count) {
    uint32_t word = 0;
    std::memcpy(&word, at, std::min<int64_t>(4, std::max<int64_t>(0, count)));
    return word;
}

// Eight codes, two a byte, the first of each in the lower half, as four bytes whose lower halves are the first four.
uint32_t split_halves(uint32_t pairs) {
    auto spread = [](uint32_t four) {
        return (four & 0xf) | (four & 0xf0) << 4 | (four & 0xf00) << 8 | (four & 0xf000) << 12;
    };
    return spread(pairs & 0xffff) | spread(pairs >> 16) << 4;
}

// Copies a number of `width` bytes of each of a panel's outputs, `stride` apart.
void copy_column(uint8_t* to, const uint8_t* from, int64_t stride, int64_t outputs, int64_t width) {
    for (int64_t i = 0; i < outputs; i++) std::memcpy(to + width * i, from + stride * i, width);
}

// Packs what a group of one panel has beside its codes.
void pack_scales(const PackQuantized& a, uint8_t* to, int64_t first_output, int64_t outputs, int64_t group) {
    const QuantizedLayout& layout = a.layout;
    int64_t width = layout.scale_width();
    copy_column(to, a.scales + first_output * a.scales_row_bytes + group * width, a.scales_row_bytes, outputs, width);
    if (int32_t times = traits_of(layout.encoding).times; times != 1) {
        store16((float*)to, load16((const float*)to) / (float)times);
        store16((float*)to + 16, load16((const float*)to + 16) / (float)times);
    }
    to += PANEL * width;
    if (layout.beside == Beside::MINIMUMS)
        copy_column(to, a.beside + first_output * a.beside_row_bytes + group * width, a.beside_row_bytes, outputs, width);
    if (layout.beside == Beside::ZEROS) {
        for (int64_t i = 0; i < outputs; i++) {
            uint8_t zero = a.beside[(first_output + i) * a.beside_row_bytes + group];
            uint16_t stored = layout.encoding == Encoding::INT8 ? zero ^ 0x80 : zero;
            std::memcpy(to + 2 * i, &stored, 2);
        }
    }
}

void pack_weight(const void* arguments, Team& team) {
    const auto& a = *static_cast<const PackQuantized*>(arguments);
    const QuantizedLayout& layout = a.layout;
    bool is_int8 = layout.encoding == Encoding::INT8, is_int6 = layout.encoding == Encoding::INT6;
    for (int64_t panel; (panel = team.take()) < a.panels.count();) {
        uint8_t* to = a.packed + panel * layout.panel_bytes();
        std::memset(to, 0, layout.panel_bytes());
        int64_t first_output = panel * PANEL, count = std::min<int64_t>(PANEL, a.outputs - first_output);
        for (int64_t group = 0; group < layout.groups(); group++) {
            int64_t first = group * layout.group_size, size = std::min(layout.group_size, layout.inputs - first);
            if (int64_t factor_bytes = layout.factors_before(group)) {
                int64_t at = first / BLOCK * 2;
                copy_column(to, a.factors + first_output * a.factors_row_bytes + at, a.factors_row_bytes, count, 2);
                if (layout.beside == Beside::MINIMUMS)
                    copy_column(to + PANEL * 2, a.minimum_factors + first_output * a.minimum_factors_row_bytes + at,
                                a.minimum_factors_row_bytes, count, 2);
                to += factor_bytes;
            }
            int64_t words = layout.padded_inputs(group) * layout.bits() / 32, bytes = (size * layout.bits() + 7) / 8;
            for (int64_t word = 0; word < words; word++, to += PANEL * 4) {
                for (int64_t i = 0; i < count; i++) {
                    const uint8_t* row = a.values + (first_output + i) * a.values_row_bytes + first * layout.bits() / 8;
                    uint32_t codes = load_codes(row + 4 * word, bytes - 4 * word);
                    bool is_upper = is_int6 && word % 3 == 2;  // the same in both orders
                    codes = is_int8 ? codes ^ 0x80808080u : is_upper ? codes : split_halves(codes);
                    std::memcpy(to + 4 * i, &codes, 4);
                }
            }
            pack_scales(a, to, first_output, count, group);
            to += layout.scale_bytes();
        }
    }
}

template <class T>
struct EmbeddingQuantized {
    Rows rows;
    T* out;
    int64_t out_stride;
    const void* ids;
    int64_t ids_bytes;  // 4 or 8
    const uint8_t* panels;
    int64_t vocab;
    double scale;
    QuantizedLayout layout;
};

// One of a panel's scales or minimums.
float scale_at(ScaleType type, const uint8_t* at, int64_t output, float factor) {
    float number;
    switch (type) {
        case ScaleType::FLOATS: std::memcpy(&number, at + 4 * output, 4); return number;
        case ScaleType::HALVES: return to_float(((const fp16*)at)[output]);
        default: return (float)((const int8_t*)at)[output] * factor;
    }
}

template <class T>
void embedding_quantized(const void* arguments, Team& team) {
    const auto& a = *static_cast<const EmbeddingQuantized<T>*>(arguments);
    const QuantizedLayout& layout = a.layout;
    int64_t panel_bytes = layout.panel_bytes();
    for_rows(team, a.rows.count(), [&](int64_t row) {
        int64_t id = a.ids_bytes == 4 ? ((const int32_t*)a.ids)[row] : ((const int64_t*)a.ids)[row];
        T* out = a.out + row * a.out_stride;
        bool is_known = id >= 0 && id < a.vocab;  // a step that is replayed cannot raise an error
        const uint8_t* at = a.panels + (is_known ? id / PANEL * panel_bytes : 0);
        int64_t lane = is_known ? id % PANEL : 0;
        float factors[2] = {};
        for (int64_t group = 0; group < layout.groups(); group++) {
            int64_t first = group * layout.group_size, size = std::min(layout.group_size, layout.inputs - first);
            if (int64_t factor_bytes = layout.factors_before(group)) {
                for (int i = 0; i < (layout.beside == Beside::MINIMUMS ? 2 : 1); i++)
                    factors[i] = to_float(((const fp16*)at)[PANEL * i + lane]);
                at += factor_bytes;
            }
            int64_t codes = layout.code_bytes(layout.padded_inputs(group));
            const uint8_t *scales = at + codes, *second = scales + PANEL * layout.scale_width();
            float scale = scale_at(layout.scales, scales, lane, factors[0]), minimum = 0.0f;
            int32_t zero = layout.zero_code();
            if (layout.beside == Beside::ZEROS) {
                uint16_t stored;
                std::memcpy(&stored, second + 2 * lane, 2);
                zero = stored;
            } else if (layout.beside == Beside::MINIMUMS) {
                minimum = scale_at(layout.scales, second, lane, factors[1]);
            }
            for (int64_t k = 0; k < size; k += 16) {
                Ints code = layout.codes_at(at, lane, k, std::min<int64_t>(16, layout.padded_inputs(group) - k));
                Floats values = convert<Floats>(code - zero);
                values = values * scale;
                if (layout.beside == Beside::MINIMUMS) values = values - minimum;
                values = is_known ? values * (float)a.scale : splat(__builtin_nanf(""));
                store_some(out + first + k, values, size - k);
            }
            at += codes + layout.scale_bytes();
        }
    });
}

}  // namespace

extern "C" {
void linear_quantized(const void* arguments, Team& team) {
    linear_quantized<Element>(arguments, team);
}
void embedding_quantized(const void* arguments, Team& team) {
    embedding_quantized<Element>(arguments, team);
}
void pack_quantized(const void* arguments, Team& team) { pack_weight(arguments, team); }
int64_t panel_bytes(const QuantizedLayout* layout) { return layout->panel_bytes(); }
}
