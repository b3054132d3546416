// Vectors of sixteen floats on any instruction set, and how numbers of each dtype become floats and back.
//
// GCC's and Clang's vector extensions make one AVX512 instruction of each operation; vector_parts.h makes two of AVX2, or four
// of NEON. Only what they cannot express well has a form for an instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
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

struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};
using Element = ELEMENT;  // what this library computes: float, bf16 or fp16

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
static inline To convert(V from) {
    return __builtin_convertvector(from, To);
}
#endif
static inline Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

// a * b + c, rounded once on every instruction set; compilers choose by what is faster.
static inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && defined(__AVX2__)
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(c.parts[i] = _mm256_fmadd_ps(a.parts[i], b.parts[i], c.parts[i]));
    return c;
#else
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(for (int lane = 0; lane < Floats::LANES; lane++) c.parts[i][lane] =
                  __builtin_fmaf(a.parts[i][lane], b.parts[i][lane], c.parts[i][lane]));
    return c;
#endif
}

// sum + a * b, in one rounding where the CPU has that. Written wherever a sum takes a product: left to themselves compilers
// fuse different ones, or none.
static inline Floats add_product(Floats sum, Floats a, Floats b) {
#if defined(__AVX512F__) || (defined(__FMA__) && defined(__AVX2__))
    return multiply_add(a, b, sum);
#else
    return sum + a * b;
#endif
}
static inline Floats add_product(Floats sum, Floats a, float b) { return add_product(sum, a, splat(b)); }
static inline Floats add_product(float sum, Floats a, Floats b) { return add_product(splat(sum), a, b); }

// Sixteen halves as words and back; compilers make a detour of the conversion.
static inline Words widen(Halves halves) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32((__m256i)halves);
#elif defined(__AVX2__)
    __m256i both = (__m256i)halves.parts[0];
    return {(Words::Part)_mm256_cvtepu16_epi32(_mm256_castsi256_si128(both)),
            (Words::Part)_mm256_cvtepu16_epi32(_mm256_extracti128_si256(both, 1))};
#else
    return convert<Words>(halves);
#endif
}
static inline Halves narrow(Words words) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16((__m512i)words);
#elif defined(__AVX2__)
    __m256i low = (__m256i)(words.parts[0] & 0xffff), high = (__m256i)(words.parts[1] & 0xffff);
    return {(Halves::Part)_mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11011000)};
#else
    return convert<Halves>(words);
#endif
}

static inline Floats load16(const float* at) { return load_vector<Floats>(at); }

static inline Floats load16(const bf16* at) {
    return as_floats(widen(load_vector<Halves>(at)) << 16);
}

static inline float fp16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff, bits;
    if (rest >= 0x7c00) {
        bits = 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
        bits = (rest << 13) + 0x38000000;
    } else {  // a denormal number: rest * 2^-24
        float value = (float)rest * 5.9604644775390625e-8f;
        std::memcpy(&bits, &value, 4);
    }
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static inline Floats load16(const fp16* at) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at));
#elif defined(__AVX2__) && defined(__F16C__)
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at + 1))};
#else
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = fp16_to_float(at[i].bits);
    return load_vector<Floats>(values);
#endif
}

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static inline float to_float(fp16 x) { return fp16_to_float(x.bits); }

static inline void store16(float* at, Floats value) { store_vector(at, value); }

// The nearest bf16 numbers, ties to even, as the upper halves of words; NaN stays NaN.
static inline Words round_to_bf16(Floats value) {
    Words bits = (Words)value;
    Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (Words)choose(value == value, (Floats)rounded, (Floats)(bits | 0x400000));
}

static inline void store16(bf16* at, Floats value) {
#if defined(__AVX512BF16__)
    store_vector(at, _mm512_cvtneps_pbh((__m512)value));  // numbers below 2^-126 become 0
#else
    store_vector(at, narrow(round_to_bf16(value) >> 16));
#endif
}

static inline uint16_t float_to_fp16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return sign | 0x7e00;
    if (rest >= 0x477ff000) return sign | 0x7c00;
    if (rest < 0x38800000) {  // smaller than the least normal number: adding 0.5 rounds to multiples of 2^-24
        float value;
        std::memcpy(&value, &rest, 4);
        value += 0.5f;
        std::memcpy(&rest, &value, 4);
        return sign | (rest - 0x3f000000);
    }
    rest += 0xfff + (rest >> 13 & 1);
    return sign | (rest - 0x38000000) >> 13;
}

static inline void store16(fp16* at, Floats value) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)at, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__F16C__)
    for (int half = 0; half < 2; half++)
        _mm_storeu_si128((__m128i*)at + half, _mm256_cvtps_ph(value.parts[half], _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < 16; i++) at[i].bits = float_to_fp16(value[i]);
#endif
}

// Sixteen codes as words, whose lower halves are those of even places; two of each word become a pair of bf16. Codes are
// whole numbers up to 127, which bf16 has exactly.
static inline Words bf16_pairs(Ints low, Ints high) {
    Words low_bits = (Words)convert<Floats>(low), high_bits = (Words)convert<Floats>(high);
    return low_bits >> 16 | (high_bits & 0xffff0000u);
}

static inline Ints widen_codes(const int8_t* at) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at));
#elif defined(__AVX2__)
    return {(Ints::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)at)),
            (Ints::Part)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(at + 8)))};
#else
    int32_t codes[16];
    for (int i = 0; i < 16; i++) codes[i] = at[i];
    return load_vector<Ints>(codes);
#endif
}
static inline Ints widen_codes(const uint8_t* at) { return widen_codes((const int8_t*)at) & 255; }

// The nearest whole number, ties to even.
static inline Floats nearest_whole(Floats value) {
#if defined(__AVX512F__)
    return (Floats)_mm512_roundscale_ps((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return {_mm256_round_ps(value.parts[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(value.parts[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
#else
    float values[16];
    for (int i = 0; i < 16; i++) values[i] = __builtin_nearbyintf(value[i]);
    return load_vector<Floats>(values);
#endif
}

// Stores sixteen whole numbers of -128 to 127 as bytes.
static inline void store_bytes(int8_t* at, Ints values) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)at, _mm512_cvtepi32_epi8((__m512i)values));
#elif defined(__AVX2__)
    __m256i halves = _mm256_packs_epi32((__m256i)values.parts[0], (__m256i)values.parts[1]);
    halves = _mm256_permute4x64_epi64(halves, 0b11011000);
    _mm_storeu_si128((__m128i*)at, _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#else
    for (int i = 0; i < 16; i++) at[i] = (int8_t)values[i];
#endif
}

// Whole numbers up to 127 as codes, the first `count` of sixteen.
static inline void store_codes(int8_t* at, Floats value, int64_t count) {
    int8_t codes[16];
    store_bytes(codes, convert<Ints>(value));
    std::memcpy(at, codes, count < 16 ? count : 16);
}

static inline Floats load16(const int8_t* at) { return convert<Floats>(widen_codes(at)); }

// The first `count` of sixteen; the others are zeros.
template <class T>
static inline Floats load_some(const T* at, int64_t count) {
    if (count >= 16) return load16(at);
    T padded[16] = {};
    std::memcpy(padded, at, count * sizeof(T));
    return load16(padded);
}

template <class T>
static inline void store_some(T* at, Floats value, int64_t count) {
    if (count >= 16) return store16(at, value);
    T padded[16];
    store16(padded, value);
    std::memcpy(at, padded, count * sizeof(T));
}

// As if it had been stored and loaded: the rounding points of an unfused computation.
template <class T>
static inline Floats rounded(Floats value) {
    T stored[16];
    store16(stored, value);
    return load16(stored);
}
template <>
inline Floats rounded<float>(Floats value) {
    return value;
}
template <>
inline Floats rounded<bf16>(Floats value) {
    return as_floats(round_to_bf16(value) & 0xffff0000u);
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

// One word holds two inputs of bf16, or one of fp32.
static inline Words load_words(const bf16* at, int64_t count) {
    if (count >= 32) return load_vector<Words>(at);
    bf16 padded[32] = {};
    std::memcpy(padded, at, count * sizeof(bf16));
    return load_vector<Words>(padded);
}
static inline Words load_words(const float* at, int64_t count) { return (Words)load_some(at, count); }
static inline Words load_words(const fp16* at, int64_t count) { return (Words)load_some(at, count); }

// The same of codes: as floats, or as pairs of bf16.
template <class C>
static inline Words load_words_as(const int8_t* at, int64_t count) {
    if constexpr (sizeof(C) == 4) {
        return (Words)load_some(at, count);
    } else {
        int8_t padded[32] = {};
        if (count < 32) {
            std::memcpy(padded, at, count);
            at = padded;
        }
        Ints pairs = (Ints)widen(load_vector<Halves>(at));
        return bf16_pairs(pairs << 24 >> 24, pairs << 16 >> 24);
    }
}
template <class C, class T>
static inline Words load_words_as(const T* at, int64_t count) {
    return load_words(at, count);
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
