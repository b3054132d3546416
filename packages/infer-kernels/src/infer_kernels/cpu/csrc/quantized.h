// Weights of eight and four bits in panels of 32 outputs, and inputs that are quantized to eight bits, row by row.
//
//     y[o] = x_scale * sum over groups of (scale[o] * (sum over the group of code[o, i] * x_code[i] - zero[o] * x_sum))
//
//     panel    group after group: codes, 32 scales fp32, and, where weights have zeros, 32 zeros int16
//     codes    of 8 bits: [inputs / 4][32 outputs][4 inputs], plus 128: unsigned, as instructions want them
//              of 4 bits: [inputs / 8][32 outputs][4 bytes]; the lower halves are the first four inputs
//     x_code   -127 to 127: x / x_scale, where 127 * x_scale is the largest magnitude of the row
//
// Sums of a group are whole numbers, the same in any order; those of groups are added from the first to the last. So a
// row's bits depend on its own row alone, whatever instructions compute it.
#pragma once

#include <algorithm>
#include <vector>

#include "dense.h"

// Twice the numbers of e2m1's codes, plus 12.
constexpr uint8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

enum class Encoding : int64_t { INT8 = 0, INT4 = 1, E2M1 = 2 };

constexpr int64_t LINE = 64;
constexpr int MOST_QUANTIZED_ROWS = 32;  // that one call multiplies

// How the panels of a weight lie in memory.
struct QuantizedLayout {
    int64_t inputs;
    int64_t group_size;
    Encoding encoding;
    int64_t has_zeros;

    int64_t groups() const { return (inputs + group_size - 1) / group_size; }
    // Codes of a group are filled up with those that multiply zeros.
    int64_t step() const { return groups() == 1 || group_size % LINE == 0 ? LINE : 8; }
    int64_t padded_inputs(int64_t group) const {
        int64_t count = std::min(group_size, inputs - group * group_size);
        return (count + step() - 1) / step() * step();
    }
    // The code of zero of weights without zeros.
    int32_t zero_code() const { return encoding == Encoding::INT8 ? 128 : encoding == Encoding::INT4 ? 8 : 12; }
    // The codes of an output's inputs from `first` on, a multiple of 16, in the group whose codes start `at`: `count` of them,
    // at most 16 and a multiple of 8; the others mean nothing.
    Ints codes_at(const uint8_t* at, int64_t output, int64_t first, int64_t count) const {
        int64_t per_word = encoding == Encoding::INT8 ? 4 : 8;
        typedef uint8_t Codes __attribute__((vector_size(16)));
        Codes codes{};
        for (int64_t i = 0; i < count; i += per_word) {
            uint32_t word;
            std::memcpy(&word, at + (first + i) / per_word * PANEL * 4 + output * 4, 4);
            if (encoding == Encoding::INT8) {
                std::memcpy((uint8_t*)&codes + i, &word, 4);
                continue;
            }
            uint32_t halves[2] = {word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu};
            std::memcpy((uint8_t*)&codes + i, halves, 8);
        }
        if (encoding == Encoding::E2M1)
            for (int i = 0; i < 16; i++) codes[i] = E2M1_CODES[codes[i]];
        return __builtin_convertvector(codes, Ints);
    }
    int64_t code_bytes(int64_t codes) const { return encoding == Encoding::INT8 ? codes * PANEL : codes * PANEL / 2; }
    int64_t scale_bytes() const { return PANEL * 4 + (has_zeros ? PANEL * 2 : 0); }
    int64_t panel_bytes() const {
        int64_t last = groups() - 1;
        return last * code_bytes(padded_inputs(0)) + code_bytes(padded_inputs(last)) + groups() * scale_bytes();
    }
};

// Inputs of eight bits. The rows are a multiple of sixteen, so that instructions may read whole tiles.
struct QuantizedRows {
    const int8_t* codes;  // [rows, stride]; zeros beyond the last input
    int64_t stride;
    const float* scales;  // [rows]
    const int32_t* sums;  // [rows, groups]
};

static inline int64_t quantized_stride(int64_t inputs) { return (inputs + LINE - 1) / LINE * LINE; }

// Floats that hold so many quantized rows.
static inline size_t quantized_size(const QuantizedLayout& layout, int64_t rows) {
    int64_t whole = (rows + 15) / 16 * 16;
    return (size_t)whole * (quantized_stride(layout.inputs) / 4 + 1 + layout.groups()) + LINE / 4;
}

// The places of quantized rows in memory of `quantized_size` floats.
static inline QuantizedRows place_quantized(const QuantizedLayout& layout, int64_t rows, float* memory) {
    int64_t whole = (rows + 15) / 16 * 16, stride = quantized_stride(layout.inputs);
    auto* codes = reinterpret_cast<int8_t*>((reinterpret_cast<uintptr_t>(memory) + LINE - 1) / LINE * LINE);
    auto* scales = reinterpret_cast<float*>(codes + whole * stride);
    return {codes, stride, scales, reinterpret_cast<int32_t*>(scales + whole)};
}

// Stores sixteen numbers of -128 to 127 as bytes.
static inline void store_bytes(int8_t* at, Ints values) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)at, _mm512_cvtepi32_epi8((__m512i)values));
#else
    for (int i = 0; i < 16; i++) at[i] = (int8_t)values[i];
#endif
}

// Quantizes one row. A row with NaN or infinity becomes NaN.
template <class T>
static inline void quantize_row(const QuantizedLayout& layout, const QuantizedRows& to, int64_t row, const T* x) {
    int64_t inputs = layout.inputs, groups = layout.groups();
    auto* codes = const_cast<int8_t*>(to.codes) + row * to.stride;
    auto* sums = const_cast<int32_t*>(to.sums) + row * groups;
    Ints largest{};
    for (int64_t i = 0; i < inputs; i += 16) {
        Ints magnitude = (Ints)((Words)load_some(x + i, inputs - i) & 0x7fffffffu);  // orders as the floats, NaN above all
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t bits = 0;
    for (int i = 0; i < 16; i++) bits = std::max(bits, largest[i]);
    float most;
    std::memcpy(&most, &bits, 4);
    bool is_finite = bits < 0x7f800000;
    float scale = most / 127.0f;
    if (scale < 1.17549435e-38f) scale = 0.0f;  // 1 / scale might be infinite; the row is as good as zeros
    float inverse = is_finite && scale > 0.0f ? 1.0f / scale : 0.0f;
    const_cast<float*>(to.scales)[row] = is_finite ? scale : __builtin_nanf("");
    bool has_whole_steps = groups == 1 || layout.group_size % 16 == 0;
    Ints sum{};
    int64_t group = 0, end = std::min(layout.group_size, inputs);
    for (int64_t i = 0; i < to.stride; i += 16) {
        Ints code{};
        if (i < inputs && is_finite) {
            Floats scaled = load_some(x + i, inputs - i) * inverse;
            scaled = choose(scaled > 127.0f, splat(127.0f), choose(scaled < -127.0f, splat(-127.0f), scaled));
            code = (Ints)(scaled + 12582912.0f) - 0x4b400000;  // the nearest whole number, ties to even
        }
        store_bytes(codes + i, code);
        if (has_whole_steps) {
            sum += code;
            if (i + 16 >= end && group < groups) {
                int32_t total = 0;
                for (int k = 0; k < 16; k++) total += sum[k];
                sums[group++] = total;
                sum = Ints{};
                end = std::min(end + layout.group_size, inputs);
            }
        }
    }
    if (!has_whole_steps) {
        for (group = 0; group < groups; group++) {
            int32_t total = 0;
            for (int64_t i = group * layout.group_size; i < std::min(inputs, (group + 1) * layout.group_size); i++)
                total += codes[i];
            sums[group] = total;
        }
    }
}

// Multiplies `rows` rows, at most MOST_QUANTIZED_ROWS, from `first_row` on, with a panel: sums [rows][32]. Asks for the
// panel `next` meanwhile, unless that is null.
void multiply_quantized(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                        int64_t first_row, int64_t rows, float* sums);

// Prepares this thread for products of `rows` rows, and cleans up after them.
class QuantizedProducts {
   public:
    QuantizedProducts(const QuantizedLayout& layout, int64_t rows);
    ~QuantizedProducts();

   private:
    bool has_tiles_;
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
    void multiply(const QuantizedLayout& layout, const QuantizedRows& x, int64_t panel, const uint8_t* next,
                  int64_t first_row, int64_t rows) const {
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
            multiply_quantized(layout, panels + panel * layout.panel_bytes(), is_last ? next : nullptr, x, first_row + start,
                               taken, sums);
            for (int64_t row = 0; row < taken; row++) {
                T* to = out + (first_row + start + row) * out_stride + first;
                store_some(to, load16(sums + row * PANEL) + added[0], count);
                if (count > 16) store_some(to + 16, load16(sums + row * PANEL + 16) + added[1], count - 16);
            }
        }
    }
};
