// The product of a few rows with a panel of outputs: the inner loop of dense layers and of attention.
//
//     panel    of bf16: [inputs / 2][outputs][2 inputs]; of fp16 and fp32: [inputs][outputs]
//
// A panel is one stream of memory, 16 * VECTORS outputs wide. Every output is summed over the inputs from the first to
// the last in one chain, whatever the number of rows, so that its bits depend on its own row alone.
#pragma once

#include <type_traits>

#include "conversions.h"
#include "unrolled.h"

#if defined(__AVX512F__)
constexpr int SUMS = 24;  // vectors of sums of a tile
constexpr int WIDE = 4;
constexpr int SUMS_AT_ONCE = SUMS;  // that stay in registers
#elif defined(__aarch64__)
constexpr int SUMS = 12;
constexpr int WIDE = 2;
constexpr int SUMS_AT_ONCE = SUMS / 2;
#else
constexpr int SUMS = 6;
constexpr int WIDE = 2;
constexpr int SUMS_AT_ONCE = SUMS;
#endif
constexpr int NARROW = 2;  // VECTORS of a dense layer's panels, whose layout is the same everywhere; attention's are WIDE

template <class T>
inline constexpr int INPUTS_TOGETHER = 1;
template <>
inline constexpr int INPUTS_TOGETHER<bf16> = 2;

// `inputs`, which may be odd, as many as are kept together.
template <class T>
static inline int64_t padded(int64_t inputs) {
    return (inputs + INPUTS_TOGETHER<T> - 1) / INPUTS_TOGETHER<T> * INPUTS_TOGETHER<T>;
}

// Elements of a panel.
template <int VECTORS, class T>
static inline int64_t panel_size(int64_t inputs) {
    return padded<T>(inputs) * 16 * VECTORS;
}

// The inputs of a tile of rows. Where one row's lie side by side, `stride` is the distance of two rows, and `step` that
// of two inputs, or pairs of bf16.
template <class T>
struct Inputs {
    const T* first;
    int64_t stride;
    int64_t step = INPUTS_TOGETHER<T>;
};

// Adds two products to each sum: weights of two inputs for sixteen outputs, and the two inputs of a row as 32 bits.
static inline Floats add_pairs(Floats sum, Words weights, uint32_t inputs) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)_mm512_set1_epi32((int)inputs));
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    bfloat16x8_t pair = (bfloat16x8_t)vdupq_n_u32(inputs);
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(sum.parts[i] = (Floats::Part)vbfdotq_f32((float32x4_t)sum.parts[i], (bfloat16x8_t)weights.parts[i], pair));
    return sum;
#else
    sum = add_product(sum, as_floats(weights << 16), as_floats(Words{} + (inputs << 16)));
    return add_product(sum, as_floats(weights & 0xffff0000u), as_floats(Words{} + (inputs & 0xffff0000u)));
#endif
}

#if defined(__clang__) && !defined(__AVX512F__)
// Adds the products of a vector of weights, one input, with the inputs of all rows, part by part: with AVX2 the sums, an input
// of each row and one part of the weights are all that sixteen registers hold. Clang keeps to this order, and spills sums in
// the other (1.8 times as long); GCC finds its own, and attention takes 1.4 times as long with this one.
template <int ROWS, int VECTORS>
ALWAYS_INLINE static inline void add_by_parts(Floats (&sums)[ROWS][VECTORS], int vector, Floats weights,
                                              const Floats::Part (&inputs)[ROWS]) {
    unrolled<Floats::PARTS>([&](auto part) ALWAYS_INLINE {
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
            Floats::Part& sum = sums[row][vector].parts[part];
            sum = add_product(sum, weights.parts[part], inputs[row]);
        });
    });
}
#endif

// Adds the products with `inputs` inputs, a multiple of INPUTS_TOGETHER. With PREFETCHES, asks for the panel `next`
// meanwhile. Always inlined: elsewhere the sums would be in memory.
#if defined(__aarch64__)
#include "product_neon.h"
#else
template <int ROWS, int VECTORS, bool PREFETCHES = false>
[[gnu::always_inline]] static inline void add_product(Floats (&sums)[ROWS][VECTORS], Inputs<bf16> x, const bf16* panel,
                                                      int64_t inputs, const bf16* next = nullptr) {
    const bf16* at = x.first;
    auto add_pair = [&] {
        Words weights[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) weights[i] = load_vector<Words>(panel + 32 * i);
        if constexpr (PREFETCHES) {
            for (int i = 0; i < VECTORS; i++) __builtin_prefetch(next + 32 * i, 0, 2);
            next += 32 * VECTORS;
        }
#pragma GCC unroll 24
        for (int row = 0; row < ROWS; row++) {
            uint32_t pair;
            std::memcpy(&pair, at + row * x.stride, 4);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) sums[row][i] = add_pairs(sums[row][i], weights[i], pair);
        }
        panel += 32 * VECTORS;
        at += x.step;
    };
    for (int64_t k = 0; k < inputs / 4; k++) {  // two at once come closer to a CPU's peak
        add_pair();
        add_pair();
    }
    if (inputs % 4) add_pair();
}
#endif

// The same one input at a time, whose weights are `step` apart.
template <int ROWS, int VECTORS, class T>
ALWAYS_INLINE static inline void add_inputs(Floats (&sums)[ROWS][VECTORS], Inputs<T> x, const T* panel, int64_t step,
                                            int64_t inputs) {
    const T* at = x.first;
    for (int64_t k = 0; k < inputs; k++, panel += step, at += x.step) {
#if !defined(__clang__) || defined(__AVX512F__)
        Floats weights[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) weights[i] = load16(panel + 16 * i);
#pragma GCC unroll 24
        for (int row = 0; row < ROWS; row++) {
            float input = to_float(at[row * x.stride]);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) sums[row][i] = add_product(sums[row][i], weights[i], input);
        }
#else
        Floats::Part inputs_of_rows[ROWS];
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
            inputs_of_rows[row] = splat(to_float(at[row * x.stride])).parts[0];
        });
        unrolled<VECTORS>([&](auto i) ALWAYS_INLINE { add_by_parts(sums, i, load16(panel + 16 * i), inputs_of_rows); });
#endif
    }
}

template <int ROWS, int VECTORS, bool PREFETCHES = false, class T>
[[gnu::always_inline]] static inline void add_product(Floats (&sums)[ROWS][VECTORS], Inputs<T> x, const T* panel,
                                                      int64_t inputs, const T* = nullptr) {
    static_assert(!PREFETCHES, "only weights of bf16 are asked for ahead");
    if constexpr (ROWS * VECTORS <= SUMS_AT_ONCE) {
        add_inputs(sums, x, panel, 16 * VECTORS, inputs);
    } else {
        unrolled<VECTORS>([&](auto vector) ALWAYS_INLINE {
            Floats some[ROWS][1];
            unrolled<ROWS>([&](auto row) ALWAYS_INLINE { some[row][0] = sums[row][vector]; });
            add_inputs(some, x, panel + 16 * vector, 16 * VECTORS, inputs);
            unrolled<ROWS>([&](auto row) ALWAYS_INLINE { sums[row][vector] = some[row][0]; });
        });
    }
}

// Calls `use(first, count)` for tiles of at most SUMS / VECTORS rows, as equal as possible; `count` is a constant.
template <int VECTORS, class Use>
static inline void for_row_tiles(int64_t rows, Use use) {
    constexpr int MOST = SUMS / VECTORS;
    int64_t tiles = (rows + MOST - 1) / MOST;
    for (int64_t first = 0; tiles > 0; tiles--) {
        int64_t count = rows / tiles;
        rows -= count;
        switch (count) {
#define CASE(N)                                                                \
    case N:                                                                    \
        if constexpr (N <= MOST) use(first, std::integral_constant<int, N>{}); \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
        }
        first += count;
    }
}
