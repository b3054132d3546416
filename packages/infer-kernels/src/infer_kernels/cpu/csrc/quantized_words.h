// Words of four codes for sixteen outputs: read from a panel (see quantized_layout.h), and multiplied by four inputs.
#pragma once

#include <array>

#include "quantized_layout.h"

#if defined(__aarch64__)
// Adds the products of 16 bytes with four inputs, repeated four times, to four sums. IS_LARGE: the sum of two products may not fit
// 16 bits, as that of -128 * -128 twice does not.
template <bool IS_LARGE>
static inline int32x4_t add_four(int32x4_t sum, uint8x16_t bytes, int8x16_t inputs) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_s32(sum, bytes, inputs);
#elif defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, (int8x16_t)bytes, inputs);
#else
    int16x8_t first = vmull_s8(vget_low_s8((int8x16_t)bytes), vget_low_s8(inputs));
    int16x8_t second = vmull_high_s8((int8x16_t)bytes, inputs);
    if constexpr (IS_LARGE) return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)));
    return vpadalq_s16(sum, vpaddq_s16(first, second));
#endif
}
#endif

// Adds four products to each sum: the bytes of four inputs for sixteen outputs (`load_word`), and the four signed inputs of a row.
// Where no instruction does that, as numbers of 16 bits: on x86 those of the bytes 0 and 2 of each word, then of 1 and 3; on ARM
// those of two outputs, then of two more, which are added in pairs to 32 bits.
template <Encoding ENCODING>
static inline Ints add_bytes(Ints sum, Words weights, uint32_t inputs) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32((int)inputs));
#elif defined(__AVX512BW__)
    __m512i four = _mm512_set1_epi32((int)inputs), bytes = (__m512i)weights;
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(four, 8), 8), odd = _mm512_srai_epi16(four, 8);
    sum += (Ints)_mm512_madd_epi16(_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), even);
    return sum + (Ints)_mm512_madd_epi16(_mm512_srli_epi16(bytes, 8), odd);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    __m256i four = _mm256_set1_epi32((int)inputs);
    constexpr int PARTS = Ints::PARTS;
    FOR_PARTS(sum.parts[i] =
                  (Ints::Part)_mm256_dpbusd_avx_epi32((__m256i)sum.parts[i], (__m256i)weights.parts[i], four));
    return sum;
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i four = _mm256_set1_epi32((int)inputs), mask = _mm256_set1_epi16(0xff);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), odd = _mm256_srai_epi16(four, 8);
    constexpr int PARTS = Ints::PARTS;
    FOR_PARTS(__m256i bytes = (__m256i)weights.parts[i];
              sum.parts[i] += (Ints::Part)_mm256_madd_epi16(_mm256_and_si256(bytes, mask), even);
              sum.parts[i] += (Ints::Part)_mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), odd));
    return sum;
#elif defined(__aarch64__)
    int8x16_t four = (int8x16_t)vdupq_n_u32(inputs);
#if !defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
    asm("" : "+w"(four));  // Clang would see that its halves are alike, and move the bytes' upper half for each product
#endif
    constexpr int PARTS = Ints::PARTS;
    FOR_PARTS(sum.parts[i] = (Ints::Part)add_four<ENCODING == Encoding::INT8>(
                  (int32x4_t)sum.parts[i], (uint8x16_t)weights.parts[i], four));
    return sum;
#else
    for (int i = 0; i < 4; i++) sum += (Ints)((weights >> 8 * i) & 0xff) * (int32_t)(int8_t)(inputs >> 8 * i);
    return sum;
#endif
}

// Replaces codes of four bits, in the lower halves of bytes, by the numbers of a table of 16.
static inline Words look_up(const uint8_t* numbers, Words codes) {
#if defined(__AVX512BW__)
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)numbers));
    return (Words)_mm512_shuffle_epi8(table, (__m512i)codes);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)numbers));
    constexpr int PARTS = Words::PARTS;
    FOR_PARTS(codes.parts[i] = (Words::Part)_mm256_shuffle_epi8(table, (__m256i)codes.parts[i]));
    return codes;
#elif defined(__aarch64__)
    uint8x16_t table = vld1q_u8(numbers);
    constexpr int PARTS = Words::PARTS;
    FOR_PARTS(codes.parts[i] = (Words::Part)vqtbl1q_u8(table, (uint8x16_t)codes.parts[i]));
    return codes;
#else
    uint8_t bytes[64];
    std::memcpy(bytes, &codes, 64);
    for (uint8_t& byte : bytes) byte = numbers[byte];
    std::memcpy(&codes, bytes, 64);
    return codes;
#endif
}

// The upper halves of bytes, as lower ones.
static inline Words upper_halves(Words bytes) {
#if defined(__aarch64__)
    constexpr int PARTS = Words::PARTS;
    FOR_PARTS(bytes.parts[i] = (Words::Part)vshrq_n_u8((uint8x16_t)bytes.parts[i], 4));
    return bytes;
#else
    return (bytes >> 4) & 0x0f0f0f0fu;
#endif
}

// Eight inputs are a step; steps that share bytes a unit.
template <Encoding ENCODING>
constexpr int UNIT = std::max(1, traits_of(ENCODING).codes_together / 8);
template <Encoding ENCODING>
constexpr int64_t UNIT_BYTES = UNIT<ENCODING> * traits_of(ENCODING).bits * PANEL;
// What its codes of four bits stand for, as they are multiplied.
template <Encoding ENCODING>
alignas(16) inline constexpr auto NUMBERS = [] {
    std::array<uint8_t, 16> numbers{};
    for (int i = 0; i < 16; i++) numbers[i] = (uint8_t)(traits_of(ENCODING).codes[i] - taken_from_codes(ENCODING));
    return numbers;
}();

// The bytes that are multiplied: those of the word of four inputs of that number, from `codes` on, for sixteen outputs.
template <Encoding ENCODING>
[[gnu::always_inline]] static inline Words load_word(const uint8_t* codes, int64_t word, int vector) {
    codes += 64 * vector;
    if constexpr (ENCODING == Encoding::INT8) {
        Words four = load_vector<Words>(codes + word * 128);
        return taken_from_codes(ENCODING) ? four ^ 0x80808080u : four;
    }
    if constexpr (ENCODING == Encoding::INT6) codes += word / 4 * 128;
    Words pairs = load_vector<Words>(codes + word / 2 * 128);
    Words halves = word % 2 ? upper_halves(pairs) : pairs & 0x0f0f0f0fu;
    if constexpr (traits_of(ENCODING).has_numbers) return look_up(NUMBERS<ENCODING>.data(), halves);
    if constexpr (ENCODING == Encoding::INT6) {
        Words upper = load_vector<Words>(codes + (word / 4 * 2 + 2) * 128);
        int place = (int)(word % 4);
        upper = place < 2 ? upper << (4 - 2 * place) : upper >> (2 * place - 4);
        return halves | (upper & 0x30303030u);
    }
    return halves;
}
