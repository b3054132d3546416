// The inner loop of product.h for bf16 on ARM: rows are lanes of registers, or pairs of them rows of matrices.
//
// Of 32 registers the sums take 24: those of up to six rows with one vector, or of fewer rows with both. Two products are added at
// once, or with matrices four: 2 outputs by 4 inputs, times 4 inputs by 2 rows, with the bits of two `bfdot` one after another (BFMMLA,
// "Arm Architecture Reference Manual", while FPCR.EBF is 0, as systems leave it). So one row has the bits of many.
#pragma once

#include "conversions.h"
#include "unrolled.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool HAS_MATRICES_OF_BF16 = true;
#else
constexpr bool HAS_MATRICES_OF_BF16 = false;
#endif

// Vectors whose sums are in registers together.
template <int ROWS, int VECTORS>
constexpr int VECTORS_AT_ONCE =
    VECTORS * (HAS_MATRICES_OF_BF16 && ROWS > 1 ? (ROWS + 1) / 2 * 2 : ROWS) <= SUMS_AT_ONCE ? VECTORS : 1;

// Adds two products to each sum: [ROWS][quarters of vectors]. Inputs are pairs, `stride` apart; weights are words.
template <int ROWS, int QUARTERS>
ALWAYS_INLINE static inline void add_pair(float32x4_t (&sums)[ROWS][QUARTERS], const bf16* x, int64_t stride, const bf16* words) {
    constexpr int REGISTERS = (ROWS + 3) / 4;
    uint32x4_t inputs[REGISTERS] = {};
    unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
        uint32_t pair;
        std::memcpy(&pair, x + row * stride, 4);
        inputs[row / 4] = vsetq_lane_u32(pair, inputs[row / 4], row.value % 4);
    });
    float32x4_t first[REGISTERS], second[REGISTERS];
    unrolled<REGISTERS>([&](auto i) ALWAYS_INLINE {
        first[i] = (float32x4_t)(inputs[i] << 16);
        second[i] = (float32x4_t)(inputs[i] & 0xffff0000u);
    });
    unrolled<QUARTERS>([&](auto i) ALWAYS_INLINE {
        uint32x4_t weights;
        std::memcpy(&weights, words + 8 * i, sizeof weights);
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
            sums[row][i] = vbfdotq_laneq_f32(sums[row][i], (bfloat16x8_t)weights, (bfloat16x8_t)inputs[row / 4], row.value % 4);
#else
            sums[row][i] = vfmaq_laneq_f32(sums[row][i], (float32x4_t)(weights << 16), first[row / 4], row.value % 4);
            sums[row][i] = vfmaq_laneq_f32(sums[row][i], (float32x4_t)(weights & 0xffff0000u), second[row / 4], row.value % 4);
#endif
        });
    });
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Adds the products of as many fours of inputs as there are, and returns what is left of them. An odd last row is multiplied twice.
// Calls `ask(inputs)` for each four.
template <int ROWS, int QUARTERS, class Ask>
ALWAYS_INLINE static inline int64_t add_matrices(float32x4_t (&sums)[ROWS][QUARTERS], Inputs<bf16>& x, const bf16*& words,
                                                 int64_t words_step, int64_t inputs, Ask ask) {
    constexpr int PAIRS = (ROWS + 1) / 2;
    float32x4_t matrices[PAIRS][2 * QUARTERS];  // [2 outputs][2 rows]
    unrolled<PAIRS * QUARTERS>([&](auto number) ALWAYS_INLINE {
        constexpr int pair = number.value / QUARTERS, i = number.value % QUARTERS;
        constexpr int odd = pair * 2 + 1 < ROWS ? pair * 2 + 1 : ROWS - 1;
        matrices[pair][2 * i] = vzip1q_f32(sums[2 * pair][i], sums[odd][i]);
        matrices[pair][2 * i + 1] = vzip2q_f32(sums[2 * pair][i], sums[odd][i]);
    });
    for (; inputs >= 4; inputs -= 4, x.first += 2 * x.step, words += 2 * words_step) {
        ask(4);
        bfloat16x8_t rows[PAIRS];
        unrolled<PAIRS>([&](auto pair) ALWAYS_INLINE {
            uint32x4_t four{};  // [2 rows][2 pairs of inputs]
            unrolled<4>([&](auto lane) ALWAYS_INLINE {
                constexpr int row = 2 * pair.value + lane.value / 2 < ROWS ? 2 * pair.value + lane.value / 2 : ROWS - 1;
                uint32_t two;
                std::memcpy(&two, x.first + row * x.stride + lane.value % 2 * x.step, 4);
                four = vsetq_lane_u32(two, four, lane.value);
            });
            rows[pair] = (bfloat16x8_t)four;
        });
        unrolled<2 * QUARTERS>([&](auto i) ALWAYS_INLINE {
            uint32x4_t a, b;
            std::memcpy(&a, words + 8 * (i / 2), sizeof a);
            std::memcpy(&b, words + words_step + 8 * (i / 2), sizeof b);
            bfloat16x8_t outputs = (bfloat16x8_t)(i % 2 ? vzip2q_u32(a, b) : vzip1q_u32(a, b));
            unrolled<PAIRS>([&](auto pair) ALWAYS_INLINE {
                matrices[pair][i] = vbfmmlaq_f32(matrices[pair][i], outputs, rows[pair]);
            });
        });
    }
    unrolled<ROWS * QUARTERS>([&](auto number) ALWAYS_INLINE {
        constexpr int row = number.value / QUARTERS, i = number.value % QUARTERS;
        float32x4_t a = matrices[row / 2][2 * i], b = matrices[row / 2][2 * i + 1];
        sums[row][i] = row % 2 ? vuzp2q_f32(a, b) : vuzp1q_f32(a, b);
    });
    return inputs;
}
#endif

// As that of product.h.
template <int ROWS, int VECTORS, bool PREFETCHES = false>
ALWAYS_INLINE static inline void add_product(Floats (&sums)[ROWS][VECTORS], Inputs<bf16> x, const bf16* panel, int64_t inputs,
                                             const bf16* next = nullptr) {
    constexpr int AT_ONCE = VECTORS_AT_ONCE<ROWS, VECTORS>, PARTS = Floats::PARTS, QUARTERS = AT_ONCE * PARTS, STEP = 32 * VECTORS;
    unrolled<VECTORS / AT_ONCE>([&](auto pass) ALWAYS_INLINE {
        float32x4_t totals[ROWS][QUARTERS];
        unrolled<ROWS * QUARTERS>([&](auto i) ALWAYS_INLINE {
            constexpr int row = i.value / QUARTERS, quarter = i.value % QUARTERS;
            totals[row][quarter] = (float32x4_t)sums[row][pass.value * AT_ONCE + quarter / PARTS].parts[quarter % PARTS];
        });
        Inputs<bf16> at = x;
        const bf16* words = panel + 32 * pass.value * AT_ONCE;
        int64_t left = inputs;
        auto ask = [&](int64_t inputs) ALWAYS_INLINE {
            if constexpr (PREFETCHES && pass.value == 0) {
                for (int64_t i = 0; i < inputs / 2 * STEP; i += 32) __builtin_prefetch(next + i, 0, 2);
                next += inputs / 2 * STEP;
            }
        };
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        if constexpr (ROWS > 1) left = add_matrices(totals, at, words, STEP, left, ask);
#endif
        for (; left > 0; left -= 2, at.first += at.step, words += STEP) {
            ask(2);
            add_pair(totals, at.first, at.stride, words);
        }
        unrolled<ROWS * QUARTERS>([&](auto i) ALWAYS_INLINE {
            constexpr int row = i.value / QUARTERS, quarter = i.value % QUARTERS;
            sums[row][pass.value * AT_ONCE + quarter / PARTS].parts[quarter % PARTS] = (Floats::Part)totals[row][quarter];
        });
    });
}
