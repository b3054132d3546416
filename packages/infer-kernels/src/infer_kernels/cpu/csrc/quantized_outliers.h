// How inputs of more than eight bits meet a panel: word after word of four inputs, once all digits 0 have been multiplied.
#pragma once

#include <vector>

#include "quantized_groups.h"

// A word of four inputs of a row beyond digits 0, times a panel's codes.
struct OutlierProduct {
    uint32_t digits;
    int32_t start, sum;  // minus the code of zero that all groups have times the sum of digits, and that sum
    bool is_second;      // digits 2, not 1

    OutlierProduct(const QuantizedLayout& layout, uint32_t digits, int digit)
        : digits(digits), sum(sum_of_bytes(digits)), is_second(digit == 1) {
        start = layout.beside == Beside::ZEROS ? 0 : -layout.zero_byte() * sum;
    }

    // Adds the product with the word at `codes` to a row's totals.
    template <Encoding ENCODING, Beside BESIDE>
    ALWAYS_INLINE void add(const uint8_t* codes, int64_t word, const GroupScales& scales, Floats (&totals)[NARROW]) const {
        Ints begin = Ints{} + start, sums = (Ints{} + sum) << 8;
        if (is_second) sums = sums << 8;
        unrolled<NARROW>([&](auto i) ALWAYS_INLINE {
            Ints product = add_bytes<ENCODING>(begin, load_word<ENCODING>(codes, word, i), digits) << 8;
            if (is_second) product = product << 8;
            if constexpr (BESIDE == Beside::ZEROS) product -= scales.zeros[i] * sums;
            totals[i] = multiply_add(convert<Floats>(product), scales.scales[i], totals[i]);
            if constexpr (BESIDE == Beside::MINIMUMS)
                totals[i] = multiply_add(-convert<Floats>(sums), scales.minimums[i], totals[i]);
        });
    }
};

// The same with its row, counted from the first one of a list, and its word, counted within the group.
struct ListedOutlier : OutlierProduct {
    int32_t row, word;
};

// The products of a group, and where its codes and scales are.
struct ListedGroup {
    GroupPlace place;
    int32_t begin, end;
};

// The products of some rows in the order of their inputs, so that each group's scales are read once.
struct OutlierList {
    int64_t first_row, rows;
    std::vector<ListedGroup> groups;  // those that have some
    std::vector<ListedOutlier> products;
};

ALWAYS_INLINE static inline GroupScales read_scales(const QuantizedLayout& layout, const uint8_t* panel, const GroupPlace& place) {
    BlockFactors factors;
    if (layout.scales == ScaleType::BYTES) factors.read(layout, 0, panel + place.factors);
    return {layout, panel + place.scales, factors};
}

// Adds what the outliers of a row contribute beyond digits 0 to its totals with a panel.
template <Encoding ENCODING, Beside BESIDE>
void multiply_outliers(const QuantizedLayout& layout, const uint8_t* panel, const QuantizedRows& x, int64_t row, float* out) {
    const OutlierWord* found = x.outliers + row * x.outlier_stride;
    const OutlierWord* end = found + x.num_outliers[row];
    Floats totals[NARROW] = {load16(out), load16(out + 16)};
    while (found < end) {
        GroupScales scales = read_scales(layout, panel, found->place);
        const uint8_t* codes = panel + found->place.codes;
        for (int32_t group = found->place.group; found < end && found->place.group == group; found++)
            for (int digit = 0; digit < 2; digit++)
                if (found->digits[digit])
                    OutlierProduct(layout, found->digits[digit], digit)
                        .add<ENCODING, BESIDE>(codes, found->word, scales, totals);
    }
    store16(out, totals[0]);
    store16(out + 16, totals[1]);
}

// The same for the rows of a list, whose totals are [rows][32].
template <Encoding ENCODING, Beside BESIDE>
void multiply_listed(const QuantizedLayout& layout, const uint8_t* panel, const OutlierList& list, float* out) {
    for (const ListedGroup& group : list.groups) {
        GroupScales scales = read_scales(layout, panel, group.place);
        const ListedOutlier* end = list.products.data() + group.end;
        for (const ListedOutlier* found = list.products.data() + group.begin; found < end; found++) {
            float* at = out + found->row * PANEL;
            Floats totals[NARROW] = {load16(at), load16(at + 16)};
            found->add<ENCODING, BESIDE>(panel + group.place.codes, found->word, scales, totals);
            store16(at, totals[0]);
            store16(at + 16, totals[1]);
        }
    }
}

// Fills the list of rows: counts the products of each word, and places them.
static inline void list_outliers(const QuantizedLayout& layout, const QuantizedRows& x, OutlierList& list) {
    static thread_local std::vector<int32_t> counts;
    int64_t words_of_group = layout.group_size / 4, num_words = (layout.inputs + 3) / 4;
    auto for_digits = [&](auto use) {
        for (int64_t row = 0; row < list.rows; row++) {
            const OutlierWord* words = x.outliers + (list.first_row + row) * x.outlier_stride;
            for (int32_t i = 0; i < x.num_outliers[list.first_row + row]; i++)
                for (int digit = 0; digit < 2; digit++)
                    if (words[i].digits[digit]) use(row, words[i], digit);
        }
    };
    auto number_of = [&](const OutlierWord& word) { return word.place.group * words_of_group + word.word; };
    counts.assign(num_words + 1, 0);
    for_digits([&](int64_t, const OutlierWord& word, int) { counts[number_of(word) + 1]++; });
    for (int64_t i = 0; i < num_words; i++) counts[i + 1] += counts[i];
    list.groups.clear();
    for (int64_t i = 0; i < num_words; i += words_of_group) {
        int32_t begin = counts[i], end = counts[std::min(i + words_of_group, num_words)];
        if (begin < end) list.groups.push_back({layout.place_of(i / words_of_group), begin, end});
    }
    list.products.resize(counts[num_words], {{layout, 0, 0}, 0, 0});
    for_digits([&](int64_t row, const OutlierWord& word, int digit) {
        list.products[counts[number_of(word)]++] = {{layout, word.digits[digit], digit}, (int32_t)row, word.word};
    });
}
