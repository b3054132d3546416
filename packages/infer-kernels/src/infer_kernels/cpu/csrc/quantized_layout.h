// How weights of eight and four bits lie in panels of 32 outputs.
//
//     panel    group after group: codes, 32 scales fp32, and, where weights have them, 32 zeros int16 or 32 minimums fp32
//     codes    of 8 bits: [inputs / 4][32 outputs][4 inputs], plus 128: unsigned, as instructions want them
//              of 4 bits: [inputs / 8][32 outputs][4 bytes]; the lower halves are the first four inputs
#pragma once

#include <algorithm>

#include "dense.h"

// Twice the numbers of e2m1's codes, plus 12.
constexpr uint8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

enum class Encoding : int64_t { INT8 = 0, INT4 = 1, E2M1 = 2 };

// What each group has beside its scales: a code of zero of its own, or a number that is taken from each product of a code
// and the scale.
enum class Beside : int64_t { NOTHING = 0, ZEROS = 1, MINIMUMS = 2 };

constexpr int64_t LINE = 64;

// How the panels of a weight lie in memory.
struct QuantizedLayout {
    int64_t inputs;
    int64_t group_size;
    Encoding encoding;
    Beside beside;

    int64_t groups() const { return (inputs + group_size - 1) / group_size; }
    // Codes of a group are filled up with those that multiply zeros.
    int64_t step() const { return groups() == 1 || group_size % LINE == 0 ? LINE : 8; }
    int64_t padded_inputs(int64_t group) const {
        int64_t count = std::min(group_size, inputs - group * group_size);
        return (count + step() - 1) / step() * step();
    }
    // The code of zero of weights without zeros.
    int32_t zero_code() const {
        if (encoding == Encoding::INT4) return beside == Beside::MINIMUMS ? 0 : 8;
        return encoding == Encoding::INT8 ? 128 : 12;
    }
    // The codes of an output's inputs from `first` on, a multiple of 16, in the group whose codes start `at`: `count` of them,
    // at most 16 and a multiple of 8; the others mean nothing.
    Ints codes_at(const uint8_t* at, int64_t output, int64_t first, int64_t count) const {
        int64_t per_word = encoding == Encoding::INT8 ? 4 : 8;
        uint8_t codes[16] = {};
        for (int64_t i = 0; i < count; i += per_word) {
            uint32_t word;
            std::memcpy(&word, at + (first + i) / per_word * PANEL * 4 + output * 4, 4);
            if (encoding == Encoding::INT8) {
                std::memcpy(codes + i, &word, 4);
                continue;
            }
            uint32_t halves[2] = {word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu};
            std::memcpy(codes + i, halves, 8);
        }
        if (encoding == Encoding::E2M1)
            for (uint8_t& code : codes) code = E2M1_CODES[code];
        return widen_codes(codes);
    }
    int64_t code_bytes(int64_t codes) const { return encoding == Encoding::INT8 ? codes * PANEL : codes * PANEL / 2; }
    int64_t scale_bytes() const {
        return PANEL * (beside == Beside::NOTHING ? 4 : beside == Beside::ZEROS ? 6 : 8);
    }
    int64_t panel_bytes() const {
        int64_t last = groups() - 1;
        return last * code_bytes(padded_inputs(0)) + code_bytes(padded_inputs(last)) + groups() * scale_bytes();
    }
};
