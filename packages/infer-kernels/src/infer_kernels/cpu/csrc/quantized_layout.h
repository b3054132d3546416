// How weights of eight, six and four bits lie in panels of 32 outputs.
//
//     panel    block after block of 256 inputs, where scales are bytes: 32 factors fp16 of scales, and of minimums where weights
//              have them; then, or elsewhere all along, group after group: codes, 32 scales, and 32 zeros int16 or 32 minimums
//     codes    of 8 bits: [inputs / 4][32 outputs][4 inputs], plus 128: unsigned, as instructions want them
//              of 4 bits: [inputs / 8][32 outputs][4 bytes]; the lower halves are the first four inputs
//              of 6 bits, plus 32: [inputs / 16][3][32 outputs][4 bytes]; twice the lower halves, as codes of 4 bits, then the
//              upper two bits: those of a byte are of four inputs, the lowest of the first
#pragma once

#include <algorithm>

#include "dense.h"
#include "encodings.h"  // written while the library is compiled: the encodings, and what is known of each

constexpr const EncodingTraits& traits_of(Encoding encoding) { return ENCODINGS[(int64_t)encoding]; }

// What scales are stored as, and minimums: fp32, fp16, or int8, which is multiplied by an fp16 factor of each 256 inputs. Those
// products are exact in fp32, as a factor has 11 bits and a scale 8.
enum class ScaleType : int64_t { FLOATS = 0, HALVES = 1, BYTES = 2 };

// What each group has beside its scales: a code of zero of its own, or a number that is taken from each product of a code
// and the scale.
enum class Beside : int64_t { NOTHING = 0, ZEROS = 1, MINIMUMS = 2 };

// What is taken from codes before they are multiplied, where the CPU multiplies signed bytes by signed bytes alone (ARM without
// i8mm): those of four and six bits are small enough as they are.
constexpr int32_t taken_from_codes([[maybe_unused]] Encoding encoding) {
#if defined(__aarch64__) && !defined(__ARM_FEATURE_MATMUL_INT8)
    return traits_of(encoding).zero == 128 ? 128 : 0;
#else
    return 0;
#endif
}

constexpr int64_t LINE = 64;
constexpr int64_t BLOCK = 256;  // inputs that share a factor

// A group's number, and where in a panel its codes are, its scales, and the factors of its block, in bytes.
struct GroupPlace {
    int32_t group, codes, scales, factors;
};

// How the panels of a weight lie in memory.
struct QuantizedLayout {
    int64_t inputs;
    int64_t group_size;
    Encoding encoding;
    Beside beside;
    ScaleType scales;

    int64_t groups() const { return (inputs + group_size - 1) / group_size; }
    // Codes of a group are filled up with those that multiply zeros.
    int64_t step() const { return inputs <= group_size || group_size % LINE == 0 ? LINE : 8; }
    int64_t padded_inputs(int64_t group) const {
        int64_t count = std::min(group_size, inputs - group * group_size);
        return (count + step() - 1) & -step();  // this is called for each group: a division would take longer than its sums
    }
    // The code of zero of weights without zeros.
    int32_t zero_code() const {
        const EncodingTraits& traits = traits_of(encoding);
        return beside == Beside::MINIMUMS ? traits.zero_with_minimums : traits.zero;
    }
    // The same code as it would be multiplied.
    int32_t zero_byte() const { return zero_code() - taken_from_codes(encoding); }
    // The codes of an output's inputs from `first` on, a multiple of 16, in the group whose codes start `at`: `count` of them,
    // at most 16 and a multiple of 8; the others mean nothing.
    Ints codes_at(const uint8_t* at, int64_t output, int64_t first, int64_t count) const {
        uint8_t codes[16] = {};
        auto word_at = [&](int64_t word) {
            uint32_t bytes;
            std::memcpy(&bytes, at + word * PANEL * 4 + output * 4, 4);
            return bytes;
        };
        if (encoding == Encoding::INT8) {
            for (int64_t i = 0; i < count; i += 4) {
                uint32_t four = word_at((first + i) / 4);
                std::memcpy(codes + i, &four, 4);
            }
        } else {
            bool is_int6 = encoding == Encoding::INT6;
            int64_t start = is_int6 ? first / 16 * 3 : first / 8;
            uint32_t upper = is_int6 ? word_at(start + 2) : 0;
            for (int64_t i = 0; i < count; i += 8, upper >>= 4) {
                uint32_t lower = word_at(start + i / 8);
                uint32_t eight[2] = {lower & 0x0f0f0f0fu, (lower >> 4) & 0x0f0f0f0fu};
                eight[0] |= (upper & 0x03030303u) << 4;
                eight[1] |= (upper & 0x0c0c0c0cu) << 2;
                std::memcpy(codes + i, eight, 8);
            }
        }
        if (traits_of(encoding).has_numbers)
            for (uint8_t& code : codes) code = traits_of(encoding).codes[code];
        return widen_codes(codes);
    }
    int64_t bits() const { return traits_of(encoding).bits; }
    int64_t code_bytes(int64_t codes) const { return codes * bits() * (PANEL / 8); }
    int64_t scale_width() const { return scales == ScaleType::FLOATS ? 4 : scales == ScaleType::HALVES ? 2 : 1; }
    int64_t scale_bytes() const {
        int64_t beside_width = beside == Beside::NOTHING ? 0 : beside == Beside::ZEROS ? 2 : scale_width();
        return PANEL * (scale_width() + beside_width);
    }
    int64_t factor_bytes() const {
        return scales == ScaleType::BYTES ? PANEL * (beside == Beside::MINIMUMS ? 4 : 2) : 0;
    }
    // Bytes of factors before a group.
    int64_t factors_before(int64_t group) const { return group * group_size % BLOCK == 0 ? factor_bytes() : 0; }
    GroupPlace place_of(int64_t group) const {
        int64_t bytes = code_bytes(padded_inputs(0)) + scale_bytes(), block = group * group_size / BLOCK;
        int64_t codes = group * bytes + (block + 1) * factor_bytes();
        int64_t factors = block * BLOCK / group_size * bytes + block * factor_bytes();
        return {(int32_t)group, (int32_t)codes, (int32_t)(codes + code_bytes(padded_inputs(group))), (int32_t)factors};
    }
    int64_t panel_bytes() const {
        int64_t last = groups() - 1, blocks = (inputs + BLOCK - 1) / BLOCK;
        return last * code_bytes(padded_inputs(0)) + code_bytes(padded_inputs(last)) + groups() * scale_bytes() +
               blocks * factor_bytes();
    }
};
