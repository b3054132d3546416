// Vectors of sixteen floats on any instruction set.
//
// GCC's and Clang's vector extensions make one AVX512 instruction of each operation; vector_parts.h makes two of AVX2, or four
// of NEON. Only what they cannot express well has a form for an instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "vector_parts.h"

#if defined(__AVX512F__)
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
#else
typedef Sixteen<float> Floats;
typedef Sixteen<int32_t> Ints;
typedef Sixteen<uint32_t> Words;
typedef Sixteen<uint16_t> Halves;
#endif

template <class V>
static inline V load_vector(const void* at) {
    V value;
#if defined(__AVX512F__)
    std::memcpy(&value, at, sizeof value);
#else
    constexpr int PARTS = V::PARTS;
    FOR_PARTS(std::memcpy(&value.parts[i], (const char*)at + i * sizeof(typename V::Part), sizeof(typename V::Part)));
#endif
    return value;
}

template <class V>
static inline void store_vector(void* at, V value) {
#if defined(__AVX512F__)
    std::memcpy(at, &value, sizeof value);
#else
    constexpr int PARTS = V::PARTS;
    FOR_PARTS(std::memcpy((char*)at + i * sizeof(typename V::Part), &value.parts[i], sizeof(typename V::Part)));
#endif
}

static inline Floats splat(float value) { return value - Floats{}; }  // minus: a compiler may leave that out, as -0 stays -0
static inline Floats as_floats(Words bits) { return (Floats)bits; }
#if defined(__AVX512F__)
static inline Floats choose(Ints condition, Floats yes, Floats no) { return condition ? yes : no; }
static inline Ints choose(Ints condition, Ints yes, Ints no) { return condition ? yes : no; }
template <class To, class V>
static inline To convert(V from) { return __builtin_convertvector(from, To); }
#endif
static inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

// sum + a * b, in one rounding where the CPU has that. Written wherever a sum takes a product: left to themselves compilers
// fuse different ones, or none.
#if defined(__AVX512F__)
static inline Floats add_product(Floats sum, Floats a, Floats b) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum); }
#else
static inline Floats::Part add_product(Floats::Part sum, Floats::Part a, Floats::Part b) {
#if defined(__FMA__) && defined(__AVX2__)
    return (Floats::Part)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
    return (Floats::Part)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}
static inline Floats add_product(Floats sum, Floats a, Floats b) {
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(sum.parts[i] = add_product(sum.parts[i], a.parts[i], b.parts[i]));
    return sum;
}
#endif
static inline Floats add_product(Floats sum, Floats a, float b) { return add_product(sum, a, splat(b)); }
static inline Floats add_product(float sum, Floats a, Floats b) { return add_product(splat(sum), a, b); }

// a * b + c, rounded once on every instruction set.
static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__) || (defined(__FMA__) && defined(__AVX2__)) || defined(__aarch64__)
    return add_product(c, a, b);
#else
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(for (int lane = 0; lane < Floats::LANES; lane++) c.parts[i][lane] =
                  __builtin_fmaf(a.parts[i][lane], b.parts[i][lane], c.parts[i][lane]));
    return c;
#endif
}

// Sixteen halves as words and back; compilers make a detour of the conversion.
static inline Words widen(Halves halves) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#elif defined(__AVX2__)
    __m256i both = (__m256i)halves.parts[0];
    return {(Words::Part)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(both)),
            (Words::Part)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1))};
#elif defined(__aarch64__)
    uint16x8_t low = (uint16x8_t)halves.parts[0], high = (uint16x8_t)halves.parts[1];
    return {(Words::Part)vmovl_u16(vget_low_u16(low)), (Words::Part)vmovl_high_u16(low),
            (Words::Part)vmovl_u16(vget_low_u16(high)), (Words::Part)vmovl_high_u16(high)};
#else
    return convert<Words>(halves);
#endif
}
// The halves as upper ones.
static inline Words widen_upper(Halves halves) {
#if defined(__aarch64__)
    uint16x8_t low = (uint16x8_t)halves.parts[0], high = (uint16x8_t)halves.parts[1], zeros{};
    return {(Words::Part)vzip1q_u16(zeros, low), (Words::Part)vzip2q_u16(zeros, low),
            (Words::Part)vzip1q_u16(zeros, high), (Words::Part)vzip2q_u16(zeros, high)};
#else
    return widen(halves) << 16;
#endif
}
static inline Halves narrow(Words words) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)words);
#elif defined(__AVX2__)
    __m256i low = (__m256i)(words.parts[0] & 0xffff), high = (__m256i)(words.parts[1] & 0xffff);
    return {(Halves::Part)_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11011000)};
#elif defined(__aarch64__)
    auto lower = [](Words::Part a, Words::Part b) { return (Halves::Part)vuzp1q_u16((uint16x8_t)a, (uint16x8_t)b); };
    return {lower(words.parts[0], words.parts[1]), lower(words.parts[2], words.parts[3])};
#else
    return convert<Halves>(words);
#endif
}
// The upper halves of words.
static inline Halves narrow_upper(Words words) {
#if defined(__aarch64__)
    auto upper = [](Words::Part a, Words::Part b) { return (Halves::Part)vuzp2q_u16((uint16x8_t)a, (uint16x8_t)b); };
    return {upper(words.parts[0], words.parts[1]), upper(words.parts[2], words.parts[3])};
#else
    return narrow(words >> 16);
#endif
}

// The nearest whole number, ties to even.
static inline Floats nearest_whole(Floats value) {
#if defined(__AVX512F__)
    return (Floats)_mm512_roundscale_ps((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return {_mm256_round_ps(value.parts[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(value.parts[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
#elif defined(__aarch64__)
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(value.parts[i] = (Floats::Part)vrndnq_f32((float32x4_t)value.parts[i]));
    return value;
#else
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = __builtin_nearbyintf(value[i]);
    return load_vector<Floats>(values);
#endif
}

// Transposes 16 rows of 16 words, by exchanging ever smaller blocks off the diagonal.
static inline void transpose(Words (&rows)[16]) {
#if defined(__AVX512F__)
#define EXCHANGE(STEP, UPPER, LOWER)                      \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) { \
        if (i & STEP) continue;                           \
        Words a = rows[i], b = rows[i + STEP];            \
        rows[i] = PICK(a, b, UPPER);                      \
        rows[i + STEP] = PICK(a, b, LOWER);               \
    }
#define UPPER8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define LOWER8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define UPPER4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define LOWER4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define UPPER2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define LOWER2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define UPPER1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define LOWER1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
    EXCHANGE(8, UPPER8, LOWER8)
    EXCHANGE(4, UPPER4, LOWER4)
    EXCHANGE(2, UPPER2, LOWER2)
    EXCHANGE(1, UPPER1, LOWER1)
#else
#define EXCHANGE(STEP)                                       \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) {  \
        if (i & STEP) continue;                              \
        Words a = rows[i], b = rows[i + STEP];               \
        rows[i] = interleave<STEP, STEP, 0>(a, b);           \
        rows[i + STEP] = interleave<STEP, 0, STEP>(a, b);    \
    }
    EXCHANGE(8)
    EXCHANGE(4)
    EXCHANGE(2)
    EXCHANGE(1)
#endif
#undef EXCHANGE
}

// Sums and maxima of the sixteen, always in this order: each with that 8, then 4, 2 and 1 places away.
template <class Operation>
static inline float reduce(Floats value, Operation combine) {
#if defined(__AVX512F__)
    value = combine(value, PICK(value, value, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    value = combine(value, PICK(value, value, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    value = combine(value, PICK(value, value, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    value = combine(value, PICK(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#else
    value = combine(value, interleave<8, 8, 8>(value, value));
    value = combine(value, interleave<4, 4, 4>(value, value));
    value = combine(value, interleave<2, 2, 2>(value, value));
    value = combine(value, interleave<1, 1, 1>(value, value));
#endif
    return value[0];
}
static inline float sum(Floats value) {
    return reduce(value, [](Floats a, Floats b) { return a + b; });
}
static inline float largest(Floats value) {
    return reduce(value, [](Floats a, Floats b) { return maximum(a, b); });
}
