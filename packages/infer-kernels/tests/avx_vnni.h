// The instruction of CPUs that have AVX-VNNI and no AVX512, in plain C++, so that any CPU with AVX2 runs their path. To be
// included before all else: compilers' own headers do not take an instruction that they were not asked for.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 add_products_of_bytes

// Adds to each word of `sums` the products of its four unsigned bytes with four signed ones, without saturation.
static inline __m256i add_products_of_bytes(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
    int32_t words[8];
    uint8_t first[32];
    int8_t second[32];
    std::memcpy(words, &sums, 32);
    std::memcpy(first, &unsigned_bytes, 32);
    std::memcpy(second, &signed_bytes, 32);
    for (int word = 0; word < 8; word++) {
        int32_t sum = 0;
        for (int byte = 4 * word; byte < 4 * word + 4; byte++) sum += (int32_t)first[byte] * second[byte];
        words[word] += sum;
    }
    std::memcpy(&sums, words, 32);
    return sums;
}
