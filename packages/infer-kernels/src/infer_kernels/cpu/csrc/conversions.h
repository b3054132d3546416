// How numbers of each dtype become floats and back, sixteen at a time.
#pragma once

#include "vectors.h"

struct bf16 {
    uint16_t bits;
};
struct fp16 {
    uint16_t bits;
};
using Element = ELEMENT;  // what this library computes: float, bf16 or fp16

static inline Floats load16(const float* at) { return load_vector<Floats>(at); }

static inline Floats load16(const bf16* at) {
    return as_floats(widen_upper(load_vector<Halves>(at)));
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
#elif defined(__aarch64__)
    Floats values;
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(values.parts[i] = (Floats::Part)vcvt_f32_f16((float16x4_t)vld1_u16(&at[4 * i].bits)));
    return values;
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
static inline float to_float(fp16 x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    __fp16 value;
    std::memcpy(&value, &x.bits, 2);
    return value;
#else
    return fp16_to_float(x.bits);
#endif
}

static inline void store16(float* at, Floats value) { store_vector(at, value); }

// The nearest bf16 numbers, ties to even, as the upper halves of words; NaN stays NaN.
static inline Words round_to_bf16(Floats value) {
    Words bits = (Words)value;
    Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (Words)choose(value == value, (Floats)rounded, (Floats)(bits | 0x400000));
}
static inline Halves bf16_bits(Floats value) {
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    auto join = [](Floats::Part a, Floats::Part b) {
        return (Halves::Part)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)a), (float32x4_t)b);
    };
    return {join(value.parts[0], value.parts[1]), join(value.parts[2], value.parts[3])};
#else
    return narrow_upper(round_to_bf16(value));
#endif
}

static inline void store16(bf16* at, Floats value) {
#if defined(__AVX512BF16__)
    store_vector(at, _mm512_cvtneps_pbh((__m512)value));  // numbers below 2^-126 become 0
#else
    store_vector(at, bf16_bits(value));
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
#elif defined(__aarch64__)
    constexpr int PARTS = Floats::PARTS;
    FOR_PARTS(vst1_u16(&at[4 * i].bits, (uint16x4_t)vcvt_f16_f32((float32x4_t)value.parts[i])));
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
#elif defined(__aarch64__)
    int8x16_t codes = vld1q_s8(at);
    int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
    return {(Ints::Part)vmovl_s16(vget_low_s16(low)), (Ints::Part)vmovl_high_s16(low),
            (Ints::Part)vmovl_s16(vget_low_s16(high)), (Ints::Part)vmovl_high_s16(high)};
#else
    int32_t codes[16];
    for (int i = 0; i < 16; i++) codes[i] = at[i];
    return load_vector<Ints>(codes);
#endif
}
static inline Ints widen_codes(const uint8_t* at) { return widen_codes((const int8_t*)at) & 255; }

// Stores sixteen whole numbers of -128 to 127 as bytes.
static inline void store_bytes(int8_t* at, Ints values) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)at, _mm512_cvtepi32_epi8((__m512i)values));
#elif defined(__AVX2__)
    __m256i halves = _mm256_packs_epi32((__m256i)values.parts[0], (__m256i)values.parts[1]);
    halves = _mm256_permute4x64_epi64(halves, 0b11011000);
    _mm_storeu_si128((__m128i*)at, _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
#elif defined(__aarch64__)
    Halves halves = narrow((Words)values);
    vst1q_s8(at, (int8x16_t)vuzp1q_u8((uint8x16_t)halves.parts[0], (uint8x16_t)halves.parts[1]));
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
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return as_floats(widen_upper(bf16_bits(value)));
#else
    return as_floats(round_to_bf16(value) & 0xffff0000u);
#endif
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
