// The product of a few rows of eight bits with a panel by instructions of ARM's i8mm, which multiply matrices: 2 outputs by 8
// inputs, times 8 inputs by 2 rows. A word's outputs and the next one's, in turn, are such matrices. The sums of six rows and
// sixteen outputs fit the registers.
#pragma once

#include "quantized_groups.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Multiplies `rows` rows, two for each of PAIRS or one less, from `first_row` on: sums [rows][32].
template <Encoding ENCODING, int PAIRS>
void multiply_pairs(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                    int64_t first_row, int64_t rows, float* out) {
    constexpr int PARTS = Ints::PARTS;
    int64_t groups = layout.groups();
    int64_t numbers[2 * PAIRS];  // of rows; the last one twice where they are odd
    for (int64_t i = 0; i < 2 * PAIRS; i++) numbers[i] = first_row + std::min(i, rows - 1);
    Floats totals[2 * PAIRS][NARROW] = {};
    BlockFactors factors;
    for (int64_t group = 0; group < groups; group++) {
        panel = factors.read(layout, group, panel);
        int64_t inputs = layout.padded_inputs(group), bytes = layout.code_bytes(inputs);
        GroupScales scales(layout, panel + bytes, factors);
        for (int vector = 0; vector < NARROW; vector++) {
            int32x4_t sums[PAIRS][2 * PARTS];  // [2 outputs][2 rows]
            unrolled<PAIRS * 2 * PARTS>([&](auto i) ALWAYS_INLINE { sums[i / (2 * PARTS)][i % (2 * PARTS)] = int32x4_t{}; });
            const uint8_t* codes = panel;
            const int8_t* at = x.codes + group * layout.group_size;
            for (int64_t left = inputs; left > 0; left -= 8 * UNIT<ENCODING>, codes += UNIT_BYTES<ENCODING>) {
                unrolled<UNIT<ENCODING>>([&](auto step) ALWAYS_INLINE {
                    Words first = load_word<ENCODING>(codes, 2 * step, vector);
                    Words second = load_word<ENCODING>(codes, 2 * step + 1, vector);
                    int8x16_t pairs[PAIRS];
                    unrolled<PAIRS>([&](auto i) ALWAYS_INLINE {
                        const int8_t *row = at + numbers[2 * i] * x.stride, *other = at + numbers[2 * i + 1] * x.stride;
                        pairs[i] = vcombine_s8(vld1_s8(row), vld1_s8(other));
                    });
                    at += 8;
                    unrolled<2 * PARTS>([&](auto i) ALWAYS_INLINE {
                        uint32x4_t a = (uint32x4_t)first.parts[i / 2], b = (uint32x4_t)second.parts[i / 2];
                        uint8x16_t outputs = (uint8x16_t)(i % 2 ? vzip2q_u32(a, b) : vzip1q_u32(a, b));
                        unrolled<PAIRS>([&](auto pair) ALWAYS_INLINE {
                            sums[pair][i] = vusmmlaq_s32(sums[pair][i], outputs, pairs[pair]);
                        });
                    });
                });
                if (!next || vector > 0) continue;
                for (int64_t i = 0; i < UNIT_BYTES<ENCODING>; i += 64) __builtin_prefetch(next + i, 0, 2);
                next += UNIT_BYTES<ENCODING>;
            }
            unrolled<2 * PAIRS>([&](auto row) ALWAYS_INLINE {
                Ints sum;
                FOR_PARTS(const int32x4_t *two = &sums[row / 2][2 * i];
                          sum.parts[i] = (Ints::Part)(row % 2 ? vuzp2q_s32(two[0], two[1]) : vuzp1q_s32(two[0], two[1])));
                int32_t x_sum = x.sums[numbers[row] * groups + group];
                totals[row][vector] = scales.add_scaled(totals[row][vector], sum, x_sum, vector);
            });
        }
        panel += bytes + layout.scale_bytes();
    }
    for (int64_t i = 0; i < rows * NARROW; i++) store16(out + 16 * i, totals[i / NARROW][i % NARROW]);
}
#endif
