// Compares what vectors of sixteen compute with plain C++, one number at a time, on the instruction set that this is compiled for.
// Ends with the number of what differs, whose first numbers it prints.
#include <cmath>
#include <cstdio>
#include <random>

#include "product.h"
#include "quantized_rows.h"
#include "quantized_words.h"

namespace {

int failures = 0;
std::mt19937 generator(7);

uint32_t draw() { return (uint32_t)generator(); }

uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// All NaN are alike: how many of their bits are kept is a matter of the instruction set.
bool is_same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

void check(bool holds, const char* what, double input, double got, double expected) {
    if (holds) return;
    if (failures++ < 20) std::printf("%s of %a is %a, not %a\n", what, input, got, expected);
}

// Any bits, then small whole numbers and their halves, ties of every rounding among them.
float draw_float(int number) {
    if (number % 2) return float_of((int32_t)draw());
    return ((int)(draw() % 1025) - 512) / 2.0f * std::ldexp(1.0f, (int)(draw() % 60) - 40);
}

void check_halves() {
    for (int first = 0; first < 1 << 16; first += 16) {
        fp16 halves[16];
        for (int i = 0; i < 16; i++) halves[i].bits = (uint16_t)(first + i);
        Floats values = load16(halves);
        for (int i = 0; i < 16; i++) {
            float expected = fp16_to_float(halves[i].bits);
            check(is_same(values[i], expected), "fp16 to fp32", first + i, values[i], expected);
            check(is_same(to_float(halves[i]), expected), "one fp16 to fp32", first + i, to_float(halves[i]), expected);
        }
    }
}

void check_floats() {
    for (int round = 0; round < 1 << 14; round++) {
        float numbers[16];
        for (int i = 0; i < 16; i++) numbers[i] = draw_float(round + i);
        Floats values = load16(numbers);
        fp16 halves[16];
        bf16 brains[16];
        store16(halves, values);
        store16(brains, values);
        Floats rounded_values = rounded<bf16>(values), whole = nearest_whole(values), again = load16(brains);
        for (int i = 0; i < 16; i++) {
            float x = numbers[i];
            uint32_t bits = bits_of(x), even = bits + 0x7fff + (bits >> 16 & 1);
            float expected = x == x ? float_of((int32_t)(even & 0xffff0000u)) : x;
            check(is_same(rounded_values[i], expected), "rounded<bf16>", x, rounded_values[i], expected);
#if defined(__AVX512BF16__)
            if (std::fabs(x) < 1.17549435e-38f) expected = std::copysign(0.0f, x);
#endif
            check(is_same(again[i], expected), "fp32 to bf16 and back", x, again[i], expected);
            check(is_same(to_float(brains[i]), expected), "fp32 to bf16", x, to_float(brains[i]), expected);
            float got = fp16_to_float(halves[i].bits), half = fp16_to_float(float_to_fp16(x));
            check(is_same(got, half), "fp32 to fp16", x, got, half);
            check(is_same(whole[i], std::nearbyint(x)), "the nearest whole number", x, whole[i], std::nearbyint(x));
        }
        float others[16], sums[16];
        for (int i = 0; i < 16; i++) others[i] = draw_float(round + i + 1), sums[i] = draw_float(round + i);
        Floats fused = multiply_add(values, load16(others), load16(sums)), more = maximum(values, load16(others));
        for (int i = 0; i < 16; i++) {
            float expected = std::fma(numbers[i], others[i], sums[i]);
            check(is_same(fused[i], expected), "a fused product and sum", numbers[i], fused[i], expected);
            expected = numbers[i] > others[i] ? numbers[i] : others[i];
            check(is_same(more[i], expected) || expected == 0, "the larger", numbers[i], more[i], expected);
        }
    }
}

void check_words() {
    for (int round = 0; round < 1 << 12; round++) {
        int8_t codes[16], stored[16];
        Words words;
        uint32_t drawn[16];
        for (int i = 0; i < 16; i++) codes[i] = (int8_t)draw(), drawn[i] = draw();
        words = load_vector<Words>(drawn);
        Ints wide = widen_codes(codes), unsigned_codes = widen_codes((const uint8_t*)codes);
        Halves lower = narrow(words), upper = narrow_upper(words);
        Words widened = widen(lower), raised = widen_upper(lower);
        store_bytes(stored, wide);
        int sum = 0;
        bool any = false;
        for (int i = 0; i < 16; i++) {
            sum += codes[i];
            any |= codes[i] != 0;
            check(wide[i] == codes[i], "a signed code", i, wide[i], codes[i]);
            check(unsigned_codes[i] == (uint8_t)codes[i], "an unsigned code", i, unsigned_codes[i], (uint8_t)codes[i]);
            check(stored[i] == codes[i], "a stored byte", i, stored[i], codes[i]);
            check(lower[i] == (drawn[i] & 0xffff), "a lower half", i, lower[i], drawn[i] & 0xffff);
            check(upper[i] == drawn[i] >> 16, "an upper half", i, upper[i], drawn[i] >> 16);
            check(raised[i] == drawn[i] << 16, "a raised half", i, raised[i], drawn[i] << 16);
            check(widened[i] == (drawn[i] & 0xffff), "a widened half", i, widened[i], drawn[i] & 0xffff);
        }
        check(total(wide) == sum, "a total", 16, total(wide), sum);
        check(has_any(wide) == any, "whether any is not 0", 16, has_any(wide), any);
    }
}

// Products of a panel's word of codes, 32 outputs by four inputs, whose extremes come often.
template <Encoding ENCODING>
void check_products(int most) {
    constexpr int64_t BYTES = 1024;
    auto extreme = [](int lowest, int highest) {
        if (draw() % 2) return draw() % 2 ? lowest : highest;
        return lowest + (int)(draw() % (highest - lowest + 1));
    };
    QuantizedLayout layout{64, 64, ENCODING, Beside::NOTHING, ScaleType::FLOATS};
    for (int round = 0; round < 1 << 10; round++) {
        uint8_t panel[BYTES];
        for (uint8_t& byte : panel) byte = (uint8_t)(ENCODING == Encoding::INT8 ? extreme(0, 255) : draw() % 3 ? draw() : 255);
        int8_t inputs[4];
        for (int8_t& input : inputs) input = (int8_t)extreme(-128, 127);
        uint32_t four;
        std::memcpy(&four, inputs, 4);
        for (int word = 0; word < 4; word++)
            for (int vector = 0; vector < 2; vector++) {
                Ints start = Ints{} + (int32_t)(draw() % 1000);
                Ints got = add_bytes<ENCODING>(start, load_word<ENCODING>(panel, word, vector), four);
                for (int output = 0; output < 16; output++) {
                    Ints codes = layout.codes_at(panel, 16 * vector + output, 0, 16);
                    int expected = start[output];
                    for (int i = 0; i < 4; i++) {
                        int code = codes[4 * word + i];
                        check(code <= most, "a code", i, code, most);
                        expected += (code - taken_from_codes(ENCODING)) * inputs[i];
                    }
                    check(got[output] == expected, "a sum of four products", (int)ENCODING, got[output], expected);
                }
            }
    }
}

// What a tile of rows adds is what each row adds alone, in bits; and near the sum in fp64.
template <int ROWS>
void check_pairs(int64_t inputs) {
    bf16 panel[64 * 32], x[ROWS * 64];
    auto fill = [](bf16& to) { to.bits = (uint16_t)(bits_of(((int)(draw() % 2001) - 1000) / 256.0f) >> 16); };
    for (bf16& each : panel) fill(each);
    for (bf16& each : x) fill(each);
    Floats together[ROWS][2] = {};
    add_product<ROWS, 2>(together, Inputs<bf16>{x, 64}, panel, inputs);
    for (int row = 0; row < ROWS; row++) {
        Floats alone[1][2] = {};
        add_product<1, 2>(alone, Inputs<bf16>{x + 64 * row, 64}, panel, inputs);
        for (int output = 0; output < 32; output++) {
            float got = together[row][output / 16][output % 16], single = alone[0][output / 16][output % 16];
            check(is_same(got, single), "a row's sum in company", row, got, single);
            double expected = 0, magnitude = 0;
            for (int64_t i = 0; i < inputs; i++) {
                double term = (double)to_float(x[64 * row + i]) * to_float(panel[i / 2 * 64 + output * 2 + i % 2]);
                expected += term;
                magnitude += std::fabs(term);
            }
            check(std::fabs(got - expected) <= 1e-6 * magnitude, "a sum of products", (double)inputs, got, expected);
        }
    }
}

void check_tiles(int64_t inputs) {
    constexpr int MOST = SUMS / NARROW;
    check_pairs<1>(inputs);
    check_pairs<2>(inputs);
    check_pairs<3>(inputs);
    check_pairs<MOST - 1>(inputs);
    check_pairs<MOST>(inputs);
}

}  // namespace

int main() {
    check_halves();
    check_floats();
    check_words();
    check_products<Encoding::INT8>(255);
    check_products<Encoding::INT4>(15);
    check_products<Encoding::E2M1>(24);
    check_products<Encoding::INT6>(63);
    check_products<Encoding::IQ4>(241);
    for (int64_t inputs : {2, 4, 6, 62, 64}) check_tiles(inputs);
    if (failures) std::printf("%d differ\n", failures);
    return failures ? 1 : 0;
}
