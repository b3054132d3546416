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

// Whether a dense layer's inputs of T become fp32 where they are arranged: with AVX2 products of bf16 are those of fp32, and to
// widen inputs again for each panel took as many instructions as to multiply them.
template <class T>
#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr bool WIDENS = std::is_same_v<T, bf16>;
#else
inline constexpr bool WIDENS = false;
#endif

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

#if defined(__clang__) && defined(__x86_64__) && !defined(__AVX512F__)
#define ADDS_BY_PARTS 1
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
#else
#define ADDS_BY_PARTS 0
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
    auto add_pair = [&]() ALWAYS_INLINE {
        Words weights[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) weights[i] = load_vector<Words>(panel + 32 * i);
#pragma GCC unroll 24
        for (int row = 0; row < ROWS; row++) {
            uint32_t pair;
            std::memcpy(&pair, at + row * x.stride, 4);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) sums[row][i] = add_pairs(sums[row][i], weights[i], pair);
        }
        if constexpr (PREFETCHES) {
            for (int i = 0; i < VECTORS; i++) __builtin_prefetch(next + 32 * i, 0, 2);
            next += 32 * VECTORS;
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

#if defined(__AVX2__) && !defined(__AVX512F__)
// The same with inputs that are fp32, one vector after the other: its sums, both parts of its weights, and one input are all
// that sixteen registers hold.
template <int ROWS, int VECTORS, bool PREFETCHES = false>
[[gnu::always_inline]] static inline void add_product(Floats (&sums)[ROWS][VECTORS], Inputs<float> x, const bf16* panel,
                                                      int64_t inputs, const bf16* next = nullptr) {
    static_assert(Floats::PARTS == 2);
    for (int vector = 0; vector < VECTORS; vector++) {  // not unrolled: GCC keeps the sums of one in registers
        Floats::Part first[ROWS], second[ROWS];
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
            first[row] = sums[row][vector].parts[0];
            second[row] = sums[row][vector].parts[1];
        });
        const float* at = x.first;
        const bf16* weights = panel + 32 * vector;
        auto add = [&](Words words) ALWAYS_INLINE {
            Floats::Part one = as_floats(words).parts[0], other = as_floats(words).parts[1];
            unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
                Floats::Part input = splat(at[row * x.stride]).parts[0];
                first[row] = add_product(first[row], one, input);
                second[row] = add_product(second[row], other, input);
            });
            at += x.step;
        };
        for (int64_t k = 0; k < inputs; k += 2, weights += 32 * VECTORS) {
            add(load_vector<Words>(weights) << 16);
            add(load_vector<Words>(weights) & 0xffff0000u);
            if constexpr (PREFETCHES) __builtin_prefetch(next + (weights - panel), 0, 2);
        }
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
            sums[row][vector].parts[0] = first[row];
            sums[row][vector].parts[1] = second[row];
        });
    }
}
#endif

// The same one input at a time, whose weights are `step` apart.
template <int ROWS, int VECTORS, class T>
ALWAYS_INLINE static inline void add_inputs(Floats (&sums)[ROWS][VECTORS], Inputs<T> x, const T* panel, int64_t step,
                                            int64_t inputs) {
    const T* at = x.first;
    for (int64_t k = 0; k < inputs; k++, panel += step, at += x.step) {
#if !ADDS_BY_PARTS
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
    if constexpr (ROWS * VECTORS <= SUMS_AT_ONCE) return add_inputs(sums, x, panel, 16 * VECTORS, inputs);
    unrolled<VECTORS>([&](auto vector) ALWAYS_INLINE {
        Floats some[ROWS][1];
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE { some[row][0] = sums[row][vector]; });
        add_inputs(some, x, panel + 16 * vector, 16 * VECTORS, inputs);
        unrolled<ROWS>([&](auto row) ALWAYS_INLINE { sums[row][vector] = some[row][0]; });
    });
}

// Calls `use(first, count)` for tiles of at most MOST rows, as equal as possible; `count` is a constant.
template <int MOST, class Use>
static inline void for_row_tiles(int64_t rows, Use use) {
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
