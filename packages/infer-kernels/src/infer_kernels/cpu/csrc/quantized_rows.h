// Rows of inputs that are quantized to eight bits, but for a few large ones, which have up to 23.
//
//     x_code   the nearest whole number to x / x_scale
//     x_scale  127 * x_scale is the largest magnitude of the row's ordinary inputs: almost all have eight bits
//
// Real models have a few inputs that are 30 to 5,000 times as large as the others. One scale for all would round the others
// away, so that the large ones, the outliers, have more bits. They are the inputs of more than OUTLIER_FACTOR times the mean
// magnitude of the others; where those are not few, of twice as much, and so on. A code is the sum of its digits:
//
//     x_code = digit_0 + 256 * digit_1 + 65,536 * digit_2        -128 <= digit <= 127
//
// Digit 0 of every input is multiplied as if there were no others. Words of four inputs with another digit that is not 0
// are kept in a list, and are multiplied apart, after all groups. Magnitudes of a row's codes add up to at most MOST_SUM, so
// that all sums of products are whole numbers of 32 bits, and exact. So a row's bits depend on its own row alone.
#pragma once

#include "quantized_layout.h"
#include "unrolled.h"

// Found by the predictions of a real model, SmolLM2-135M: with half as many outliers at most, they differ twice as much from
// those of unrounded inputs, with blocks of 32 inputs that have scales of their own five times.
constexpr float OUTLIER_FACTOR = 4.0f;
constexpr int MOST_PASSES = 4;  // that look for outliers; each leaves out what the one before has found
constexpr int32_t MOST_CODE = 1 << 22;  // up to here floats are rounded to whole numbers by one addition
constexpr int32_t MOST_SUM = (1 << 23) - (1 << 17);  // and half of 2^16 for each input of a word, times the largest code, 255: below 2^31

// Four neighbouring inputs, one of which at least is an outlier.
struct OutlierWord {
    GroupPlace place;
    int32_t word;        // a quarter of the number of the first input, counted within the group
    uint32_t digits[2];  // digits 1 and 2 of the four
};

// The inputs of a product. The rows are a multiple of sixteen, so that instructions may read whole tiles.
struct QuantizedRows {
    int8_t* codes;  // [rows, stride], digit 0; zeros beyond the last input
    int64_t stride;
    float* scales;          // [rows]
    int32_t* sums;          // [rows, groups], of digits 0
    int32_t* starts;        // [rows, groups], minus the code of zero that all groups have times those
    int32_t* num_outliers;  // [rows], words
    OutlierWord* outliers;  // [rows, outlier_stride], in order of inputs
    int64_t outlier_stride;
};

// Inputs of a row that may have more than eight bits. The more there are, the longer they take.
static inline int64_t most_outliers(int64_t inputs) { return std::max<int64_t>(8, inputs / 32); }

static inline int64_t quantized_stride(int64_t inputs) { return (inputs + LINE - 1) / LINE * LINE; }

// Floats that hold so many quantized rows.
static inline size_t quantized_size(const QuantizedLayout& layout, int64_t rows) {
    int64_t whole = (rows + 15) / 16 * 16;
    int64_t floats_of_words = most_outliers(layout.inputs) * (int64_t)(sizeof(OutlierWord) / sizeof(float));
    return (size_t)whole * (quantized_stride(layout.inputs) / 4 + 2 + 2 * layout.groups() + floats_of_words) + LINE / 4;
}

// The places of quantized rows in memory of `quantized_size` floats.
static inline QuantizedRows place_quantized(const QuantizedLayout& layout, int64_t rows, float* memory) {
    int64_t whole = (rows + 15) / 16 * 16;
    QuantizedRows places;
    places.stride = quantized_stride(layout.inputs);
    places.outlier_stride = most_outliers(layout.inputs);
    places.codes = reinterpret_cast<int8_t*>((reinterpret_cast<uintptr_t>(memory) + LINE - 1) / LINE * LINE);
    places.outliers = reinterpret_cast<OutlierWord*>(places.codes + whole * places.stride);
    places.scales = reinterpret_cast<float*>(places.outliers + whole * places.outlier_stride);
    places.num_outliers = reinterpret_cast<int32_t*>(places.scales + whole);
    places.sums = places.num_outliers + whole;
    places.starts = places.sums + whole * layout.groups();
    return places;
}

static inline int32_t total(Ints values) {
#if defined(__aarch64__)
    auto parts = values.parts;
    return vaddvq_s32((int32x4_t)(parts[0] + parts[1] + (parts[2] + parts[3])));
#else
    int32_t total = 0;
    for (int i = 0; i < 16; i++) total += values[i];
    return total;
#endif
}

static inline bool has_any(Ints values) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)values, (__m512i)values) != 0;
#else
    return total(values != 0) != 0;
#endif
}

static inline int32_t sum_of_bytes(uint32_t four) {
    return (int8_t)four + (int8_t)(four >> 8) + (int8_t)(four >> 16) + (int8_t)(four >> 24);
}

// The magnitudes of a row that are at most a bound: the largest, as the bits of a float, and their sum; and how many are not.
struct Magnitudes {
    int32_t largest;
    float sum;
    int64_t excluded;
};

// Bits of magnitudes have the order of the floats, with NaN above all.
template <class T>
static inline Magnitudes measure_magnitudes(const T* x, int64_t inputs, int32_t bound) {
    constexpr int CHAINS = 4;  // of additions, none of which waits for the others
    Ints largest[CHAINS] = {}, excluded[CHAINS] = {};
    Floats sums[CHAINS] = {};
    auto add = [&](int chain, int64_t i) ALWAYS_INLINE {
        Ints magnitude = (Ints)((Words)load_some(x + i, inputs - i) & 0x7fffffffu);
        Ints is_kept = magnitude <= bound;
        excluded[chain] += is_kept + 1;
        magnitude &= is_kept;
        largest[chain] = choose(magnitude > largest[chain], magnitude, largest[chain]);
        sums[chain] += (Floats)magnitude;
    };
    int64_t i = 0;
    for (; i + 16 * CHAINS <= inputs; i += 16 * CHAINS)
        unrolled<CHAINS>([&](auto chain) ALWAYS_INLINE { add(chain, i + 16 * chain); });
    for (; i < inputs; i += 16) add(0, i);
    for (int chain = 1; chain < CHAINS; chain++) {
        largest[0] = choose(largest[chain] > largest[0], largest[chain], largest[0]);
        excluded[0] += excluded[chain];
        sums[0] += sums[chain];
    }
    int32_t most = 0;
    for (int i = 0; i < 16; i++) most = std::max(most, largest[0][i]);
    return {most, sum(sums[0]), total(excluded[0])};
}

static inline float float_of(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The magnitudes of a row's ordinary inputs, where `all` are those of the row.
template <class T>
static inline Magnitudes leave_out_outliers(const T* x, int64_t inputs, const Magnitudes& all) {
    Magnitudes rest = all;
    float factor = OUTLIER_FACTOR;
    for (int pass = 0; pass < MOST_PASSES; pass++) {
        float bound = factor * (rest.sum / (float)(inputs - rest.excluded));
        if (!(bound < float_of(rest.largest))) break;
        int32_t bits;
        std::memcpy(&bits, &bound, 4);
        Magnitudes fewer = measure_magnitudes(x, inputs, bits);
        if (fewer.excluded > most_outliers(inputs))
            factor *= 2.0f;
        else
            rest = fewer;
    }
    return rest;
}

// Digit 0 of sixteen codes, or of what is left of them.
static inline Ints lowest_digit(Ints codes) { return ((codes + 128) & 255) - 128; }

// Adds the words of sixteen inputs, from the one of number `first` on, to a row's list. `higher` are their codes without
// digit 0, divided by 256.
static inline void add_outliers(const QuantizedLayout& layout, OutlierWord* list, int32_t& count, int64_t first, Ints higher) {
    Ints digit = lowest_digit(higher);
    alignas(16) int8_t digits[2][16];
    store_bytes(digits[0], digit);
    store_bytes(digits[1], (higher - digit) >> 8);
    for (int word = 0; word < 4; word++) {
        OutlierWord added;
        for (int i = 0; i < 2; i++) std::memcpy(&added.digits[i], digits[i] + 4 * word, 4);
        if (!(added.digits[0] | added.digits[1])) continue;
        int64_t input = first + 4 * word, group = input / layout.group_size;
        added.place = layout.place_of(group);
        added.word = (int32_t)((input - group * layout.group_size) / 4);
        list[count++] = added;
    }
}

// Quantizes one row. A row with NaN or infinity becomes NaN.
template <class T>
static inline void quantize_row(const QuantizedLayout& layout, const QuantizedRows& to, int64_t row, const T* x) {
    int64_t inputs = layout.inputs, groups = layout.groups();
    int8_t* codes = to.codes + row * to.stride;
    int32_t* sums = to.sums + row * groups;
    Magnitudes all = measure_magnitudes(x, inputs, INT32_MAX);
    bool is_finite = all.largest < 0x7f800000;
    Magnitudes rest = is_finite ? leave_out_outliers(x, inputs, all) : all;
    float scale = std::max(float_of(rest.largest) / 127.0f, float_of(all.largest) / (float)MOST_CODE);
    scale = std::max(scale, all.sum / (float)MOST_SUM);
    if (scale < 1.17549435e-38f) scale = 0.0f;  // 1 / scale might be infinite; the row is as good as zeros
    float inverse = is_finite && scale > 0.0f ? 1.0f / scale : 0.0f;
    to.scales[row] = is_finite ? scale : __builtin_nanf("");
    Floats most = splat(rest.excluded > 0 ? (float)MOST_CODE : 127.0f);
    int32_t num_outliers = 0;
    bool has_whole_steps = groups == 1 || layout.group_size % 16 == 0;
    Ints sum{};
    int64_t group = 0, end = std::min(layout.group_size, inputs);
    for (int64_t i = 0; i < to.stride; i += 16) {
        Ints code{};
        if (i < inputs && is_finite) {
            Floats scaled = load_some(x + i, inputs - i) * inverse;
            scaled = choose(scaled > most, most, choose(scaled < -most, -most, scaled));
            code = (Ints)(scaled + 12582912.0f) - 0x4b400000;  // the nearest whole number, ties to even
        }
        Ints low = code;
        if (rest.excluded > 0) {
            low = lowest_digit(code);
            Ints higher = (code - low) >> 8;
            if (has_any(higher)) add_outliers(layout, to.outliers + row * to.outlier_stride, num_outliers, i, higher);
        }
        store_bytes(codes + i, low);
        if (has_whole_steps) {
            sum += low;
            if (i + 16 >= end && group < groups) {
                sums[group++] = total(sum);
                sum = Ints{};
                end = std::min(end + layout.group_size, inputs);
            }
        }
    }
    to.num_outliers[row] = num_outliers;
    if (!has_whole_steps) {
        for (group = 0; group < groups; group++) {
            int32_t total = 0;
            for (int64_t i = group * layout.group_size; i < std::min(inputs, (group + 1) * layout.group_size); i++)
                total += codes[i];
            sums[group] = total;
        }
    }
    int32_t zero = layout.beside == Beside::ZEROS ? 0 : layout.zero_byte();
    for (group = 0; group < groups; group++) to.starts[row * groups + group] = -zero * sums[group];
}
