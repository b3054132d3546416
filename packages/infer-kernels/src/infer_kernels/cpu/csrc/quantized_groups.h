// What lies around the codes of a group: factors, scales, zeros, minimums.
#pragma once

#include "quantized.h"
#include "quantized_words.h"

// What the scales and minimums of a block are multiplied by, where they are bytes.
struct BlockFactors {
    Floats scales[2];
    Floats minimums[2];

    // Reads those before a group, if there are any. Returns where the group's codes are.
    const uint8_t* read(const QuantizedLayout& layout, int64_t group, const uint8_t* at) {
        int64_t bytes = layout.factors_before(group);
        if (bytes == 0) return at;
        for (int i = 0; i < 2; i++) scales[i] = load16((const fp16*)at + 16 * i);
        if (layout.beside == Beside::MINIMUMS)
            for (int i = 0; i < 2; i++) minimums[i] = load16((const fp16*)at + PANEL + 16 * i);
        return at + bytes;
    }
};

// What follows a group's codes.
struct GroupScales {
    Floats scales[2];
    Floats minimums[2];
    Ints zeros[2];
    Beside beside;
    int32_t zero_byte;

    ALWAYS_INLINE GroupScales(const QuantizedLayout& layout, const uint8_t* at, const BlockFactors& factors)
        : beside(layout.beside), zero_byte(layout.zero_byte()) {
        read_scales(layout.scales, at, factors.scales, scales);
        const uint8_t* second = at + PANEL * layout.scale_width();
        if (beside == Beside::ZEROS)
            for (int i = 0; i < 2; i++)
                zeros[i] = (Ints)widen(load_vector<Halves>(second + 32 * i)) - taken_from_codes(layout.encoding);
        if (beside == Beside::MINIMUMS) read_scales(layout.scales, second, factors.minimums, minimums);
    }

    ALWAYS_INLINE static void read_scales(ScaleType type, const uint8_t* at, const Floats (&factors)[2], Floats (&to)[2]) {
        for (int i = 0; i < 2; i++) {
            if (type == ScaleType::FLOATS)
                to[i] = load16((const float*)at + 16 * i);
            else if (type == ScaleType::HALVES)
                to[i] = load16((const fp16*)at + 16 * i);
            else
                to[i] = load16((const int8_t*)at + 16 * i) * factors[i];
        }
    }

    // Adds a group's sums times their scales, and takes the sum of inputs times their minimums.
    Floats add_scaled(Floats total, Ints sum, int32_t x_sum, int part) const {
        if (beside == Beside::ZEROS)
            sum -= zeros[part] * x_sum;
        else if (zero_byte != 0)
            sum -= zero_byte * x_sum;
        total = multiply_add(convert<Floats>(sum), scales[part], total);
        return beside == Beside::MINIMUMS ? multiply_add(splat(-(float)x_sum), minimums[part], total) : total;
    }

    // The same where `beside` is known, of sums without what a code of zero that all have adds to them.
    template <Beside BESIDE>
    ALWAYS_INLINE Floats add_whole(Floats total, Ints sum, int32_t x_sum, int part) const {
        Ints x_sums = Ints{} + x_sum;
        if constexpr (BESIDE == Beside::ZEROS) sum -= zeros[part] * x_sums;
        total = multiply_add(convert<Floats>(sum), scales[part], total);
        return BESIDE == Beside::MINIMUMS ? multiply_add(-convert<Floats>(x_sums), minimums[part], total) : total;
    }
};
