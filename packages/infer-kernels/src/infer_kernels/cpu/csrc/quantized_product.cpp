// The product of up to 32 rows of eight bits with a panel of eight, six or four bits (see quantized.h).
#include "amx.h"
#include "quantized.h"
#include "quantized_words.h"

namespace {

constexpr int MOST_ROWS = SUMS / NARROW;  // whose sums stay in registers
constexpr int64_t TILED_ROWS = 8;         // from so many rows on, matrix instructions are faster where a CPU has them

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define HAS_SHORT_SUMS 1
// Steps whose products fit sums of 16 bits, as codes are at most 15, 24, or 63; 0: one alone may not.
template <Encoding ENCODING>
constexpr int SHORT_STEPS = ENCODING == Encoding::INT4   ? 4
                            : ENCODING == Encoding::E2M1 ? 2
                            : ENCODING == Encoding::INT6 ? 1
                                                         : 0;
// Steps of a call: those of a common group.
template <Encoding ENCODING>
constexpr int CALL_STEPS = ENCODING == Encoding::INT6 ? UNIT<ENCODING> : 4;

// Multiplies at most CALL_STEPS steps, and calls add(row, vector, sums of the products, is_first, is_last) for each part of
// them. Sums of 16 bits, of two products each, take half the instructions.
template <Encoding ENCODING, int ROWS, class Add>
[[gnu::always_inline]] inline void multiply_short_steps(const uint8_t* panel, const int8_t* at, int64_t stride,
                                                        int64_t steps, const Add& add) {
    constexpr int PARTS = Words::PARTS;
    if constexpr (UNIT<ENCODING> > 1) steps = UNIT<ENCODING>;  // groups are whole units
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int vector = 0; vector < NARROW; vector++) {
#pragma GCC unroll 2
        for (int64_t from = 0; from < steps; from += SHORT_STEPS<ENCODING>) {
            Sixteen<int32_t> pairs[ROWS] = {};
            int64_t end = std::min<int64_t>(from + SHORT_STEPS<ENCODING>, steps);
            for (int64_t step = from; step < end; step++) {
                Words first = load_word<ENCODING>(panel, 2 * step, vector);
                Words second = load_word<ENCODING>(panel, 2 * step + 1, vector);
#pragma GCC unroll 12
                for (int row = 0; row < ROWS; row++) {
                    int32_t inputs[2];
                    std::memcpy(inputs, at + row * stride + step * 8, 8);
                    auto multiply = [&](__m256i sum, Words::Part weights, int32_t four) {
                        return _mm256_add_epi16(sum, _mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32(four)));
                    };
                    FOR_PARTS(__m256i sum = multiply((__m256i)pairs[row].parts[i], first.parts[i], inputs[0]);
                              pairs[row].parts[i] = (Ints::Part)multiply(sum, second.parts[i], inputs[1]));
                }
            }
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; row++) {
                Ints sums;
                FOR_PARTS(sums.parts[i] = (Ints::Part)_mm256_madd_epi16((__m256i)pairs[row].parts[i], ones));
                add(row, vector, sums, from == 0, end == steps);
            }
        }
    }
}
#else
#define HAS_SHORT_SUMS 0
#endif

// What the scales and minimums of a block are multiplied by, where they are bytes.
struct BlockFactors {
    Floats scales[2];
    Floats minimums[2];

    // Reads those before a group, if there are any. Returns where the group's codes are.
    const uint8_t* read(const QuantizedLayout& layout, int64_t group, const uint8_t* at) {
        int64_t bytes = layout.factors_before(group);
        if (bytes == 0) return at;
        for (int i = 0; i < 2; i++) scales[i] = load16((const fp16*)at + 16 * i);
        if (layout.beside == Beside::MINIMUMS)
            for (int i = 0; i < 2; i++) minimums[i] = load16((const fp16*)at + PANEL + 16 * i);
        return at + bytes;
    }
};

// What follows a group's codes.
struct GroupScales {
    Floats scales[2];
    Floats minimums[2];
    Ints zeros[2];
    Beside beside;
    int32_t zero_code;

    GroupScales(const QuantizedLayout& layout, const uint8_t* at, const BlockFactors& factors)
        : beside(layout.beside), zero_code(layout.zero_code()) {
        read_scales(layout.scales, at, factors.scales, scales);
        const uint8_t* second = at + PANEL * layout.scale_width();
        if (beside == Beside::ZEROS)
            for (int i = 0; i < 2; i++) zeros[i] = (Ints)widen(load_vector<Halves>(second + 32 * i));
        if (beside == Beside::MINIMUMS) read_scales(layout.scales, second, factors.minimums, minimums);
    }

    static void read_scales(ScaleType type, const uint8_t* at, const Floats (&factors)[2], Floats (&to)[2]) {
        for (int i = 0; i < 2; i++) {
            if (type == ScaleType::FLOATS)
                to[i] = load16((const float*)at + 16 * i);
            else if (type == ScaleType::HALVES)
                to[i] = load16((const fp16*)at + 16 * i);
            else
                to[i] = load16((const int8_t*)at + 16 * i) * factors[i];
        }
    }

    // Adds a group's sums times their scales, and takes the sum of inputs times their minimums.
    Floats add_scaled(Floats total, Ints sum, int32_t x_sum, int part) const {
        if (beside == Beside::ZEROS)
            sum -= zeros[part] * x_sum;
        else if (zero_code != 0)
            sum -= zero_code * x_sum;
        total = multiply_add(convert<Floats>(sum), scales[part], total);
        return beside == Beside::MINIMUMS ? multiply_add(splat(-(float)x_sum), minimums[part], total) : total;
    }
};

// The words of a row's outliers that have not met a panel yet.
struct OutliersLeft {
    const OutlierWord *at, *end;

    OutliersLeft() = default;
    OutliersLeft(const QuantizedRows& x, int64_t row)
        : at(x.outliers + row * x.outlier_stride), end(at + x.num_outliers[row]) {}

    // Adds what those of a group contribute to its sums beyond digit 0. The group's codes start at `codes`.
    template <Encoding ENCODING>
    void add(const QuantizedLayout& layout, int64_t group, const uint8_t* codes, Ints (&sums)[NARROW]) {
        int64_t first_word = group * layout.group_size / 4, last_word = first_word + layout.group_size / 4;
        if (group == layout.groups() - 1) last_word = INT32_MAX;
        if (at == end || at->word >= last_word) return;
        Ints products[2][NARROW] = {};  // of digits 1 and 2
        for (; at < end && at->word < last_word; at++) {
            int64_t word = at->word - first_word;
            for (int i = 0; i < NARROW; i++) {
                Words weights = load_word<ENCODING>(codes, word, i);
                products[0][i] = add_bytes(products[0][i], weights, at->digits[0]);
                if (at->digits[1]) products[1][i] = add_bytes(products[1][i], weights, at->digits[1]);
            }
        }
        for (int i = 0; i < NARROW; i++) sums[i] += (products[0][i] << 8) + (products[1][i] << 16);
    }
};

template <Encoding ENCODING, int ROWS>
void multiply_rows(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                   int64_t first_row, float* out) {
    constexpr int CHAINS = ROWS <= 3 ? 2 : 1;  // of whole numbers, whose order does not matter
    int64_t groups = layout.groups();
    const int8_t* rows = x.codes + first_row * x.stride;
    Floats totals[ROWS][NARROW] = {};
    OutliersLeft outliers[ROWS];
    bool any_outliers = false;
    for (int row = 0; row < ROWS; row++) any_outliers |= (outliers[row] = {x, first_row + row}).at < outliers[row].end;
    BlockFactors factors;
    for (int64_t group = 0; group < groups; group++) {
        panel = factors.read(layout, group, panel);
        int64_t steps = layout.padded_inputs(group) / 8;
#if HAS_SHORT_SUMS
        constexpr int64_t CALL = CALL_STEPS<ENCODING>;
        bool is_one_call = SHORT_STEPS<ENCODING> > 0 && steps <= CALL;
#else
        constexpr bool is_one_call = false;
#endif
        Ints sums[CHAINS][ROWS][NARROW];
        if (any_outliers || !is_one_call) std::memset(&sums, 0, sizeof sums);
        if (any_outliers) {
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; row++) outliers[row].template add<ENCODING>(layout, group, panel, sums[0][row]);
        }
        const int8_t* at = rows + group * layout.group_size;
        auto add = [&](int chain, const Words (&weights)[NARROW], int64_t first) {
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; row++) {
                uint32_t inputs;
                std::memcpy(&inputs, at + row * x.stride + first, 4);
#pragma GCC unroll 2
                for (int i = 0; i < NARROW; i++) sums[chain][row][i] = add_bytes(sums[chain][row][i], weights[i], inputs);
            }
        };
        auto ask = [&](int64_t bytes) {
            if (!next) return;
            for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
            next += bytes;
        };
#if HAS_SHORT_SUMS
        if constexpr (SHORT_STEPS<ENCODING> > 0) {
            auto bytes_of = [](int64_t steps) { return steps * UNIT_BYTES<ENCODING> / UNIT<ENCODING>; };
            if (is_one_call) {  // sums of a small group stay in registers
                int64_t bytes = bytes_of(steps);
                GroupScales scales(layout, panel + bytes, factors);
                auto finish = [&](int row, int vector, Ints products, bool is_first, bool is_last) {
                    Ints& sum = sums[0][row][vector];
                    if (any_outliers || !is_first) products += sum;
                    if (!is_last) {
                        sum = products;
                        return;
                    }
                    Floats& total = totals[row][vector];
                    total = scales.add_scaled(total, products, x.sums[(first_row + row) * groups + group], vector);
                };
                multiply_short_steps<ENCODING, ROWS>(panel, at, x.stride, steps, finish);
                panel += bytes + layout.scale_bytes();
                ask(bytes);
                continue;
            }
            for (; steps > 0; steps -= CALL, at += 8 * CALL) {
                int64_t taken = std::min(steps, CALL);
                auto add_up = [&](int row, int vector, Ints products, bool, bool) { sums[0][row][vector] += products; };
                multiply_short_steps<ENCODING, ROWS>(panel, at, x.stride, taken, add_up);
                panel += bytes_of(taken);
                ask(bytes_of(taken));
            }
        }
#endif
        for (; steps > 0; steps -= UNIT<ENCODING>) {
            ask(UNIT_BYTES<ENCODING>);
#pragma GCC unroll 2
            for (int step = 0; step < UNIT<ENCODING>; step++, at += 8) {
                Words first[NARROW], second[NARROW];
                for (int i = 0; i < NARROW; i++) first[i] = load_word<ENCODING>(panel, 2 * step, i);
                for (int i = 0; i < NARROW; i++) second[i] = load_word<ENCODING>(panel, 2 * step + 1, i);
                add(0, first, 0);
                add(CHAINS - 1, second, 4);
            }
            panel += UNIT_BYTES<ENCODING>;
        }
        GroupScales scales(layout, panel, factors);
        panel += layout.scale_bytes();
        for (int row = 0; row < ROWS; row++) {
            int32_t x_sum = x.sums[(first_row + row) * groups + group];
            for (int i = 0; i < NARROW; i++) {
                Ints sum = sums[0][row][i];
                if constexpr (CHAINS > 1) sum += sums[1][row][i];
                totals[row][i] = scales.add_scaled(totals[row][i], sum, x_sum, i);
            }
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < NARROW; i++) store16(out + row * PANEL + 16 * i, totals[row][i] * x.scales[first_row + row]);
}

template <Encoding ENCODING>
void multiply_in_registers(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next,
                           const QuantizedRows& x, int64_t first_row, int64_t rows, float* sums) {
    for_row_tiles<NARROW>(rows, [&](int64_t start, auto num_rows) {
        const uint8_t* asked = start + num_rows == rows ? next : nullptr;
        multiply_rows<ENCODING, num_rows>(layout, panel, asked, x, first_row + start, sums + start * PANEL);
    });
}

#if HAS_AMX_INT8
// The tiles: 0 to 3 sums [16 rows][16 outputs], 4 and 5 inputs [16 rows][64], 6 and 7 codes [64 / 4][16 outputs][4].

// Some compilers do not know that tiles are loaded from memory, and might leave stores for later.
inline void wait_for_stores() { asm volatile("" ::: "memory"); }

template <Encoding ENCODING>
void multiply_tiles(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                    int64_t first_row, int64_t rows, float* out) {
    constexpr int64_t UNPACKED = 64 * PANEL;  // bytes of the codes of 64 inputs
    constexpr int64_t BYTES = 8 / UNIT<ENCODING> * UNIT_BYTES<ENCODING>;  // as they are packed
    alignas(64) uint8_t unpacked[UNPACKED];
    alignas(64) int32_t sums[4][16 * 16];
    alignas(64) float totals[MOST_QUANTIZED_ROWS * PANEL];
    OutliersLeft outliers[MOST_QUANTIZED_ROWS];
    for (int64_t row = 0; row < rows; row++) outliers[row] = {x, first_row + row};
    int64_t groups = layout.groups();
    bool has_second = rows > 16;
    const int8_t* inputs = x.codes + first_row * x.stride;
    BlockFactors factors;
    for (int64_t group = 0; group < groups; group++) {
        const int8_t* at = inputs + group * layout.group_size;
        panel = factors.read(layout, group, panel);
        const uint8_t* group_codes = panel;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t left = layout.padded_inputs(group); left > 0; left -= 64, at += 64) {
            const uint8_t* codes = panel;
            if constexpr (ENCODING == Encoding::INT8) {
                panel += UNPACKED;
            } else {
#pragma GCC unroll 8
                for (int word = 0; word < 16; word++)
                    for (int vector = 0; vector < NARROW; vector++)
                        store_vector(unpacked + 128 * word + 64 * vector, load_word<ENCODING>(panel, word, vector));
                wait_for_stores();
                codes = unpacked;
                panel += BYTES;
            }
            _tile_loadd(4, at, x.stride);
            _tile_loadd(6, codes, 128);
            _tile_dpbsud(0, 4, 6);
            _tile_loadd(7, codes + 64, 128);
            _tile_dpbsud(1, 4, 7);
            if (has_second) {
                _tile_loadd(5, at + 16 * x.stride, x.stride);
                _tile_dpbsud(2, 5, 6);
                _tile_dpbsud(3, 5, 7);
            }
            if (next) {
                for (int64_t i = 0; i < BYTES; i += 64) __builtin_prefetch(next + i, 0, 2);
                next += BYTES;
            }
        }
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        if (has_second) {
            _tile_stored(2, sums[2], 64);
            _tile_stored(3, sums[3], 64);
        }
        GroupScales scales(layout, panel, factors);
        panel += layout.scale_bytes();
        bool is_first = group == 0, is_last = group == groups - 1;
        for (int64_t row = 0; row < rows; row++) {
            int32_t x_sum = x.sums[(first_row + row) * groups + group];
            Ints group_sums[NARROW];
            for (int i = 0; i < NARROW; i++) group_sums[i] = load_vector<Ints>(sums[row / 16 * 2 + i] + row % 16 * 16);
            outliers[row].template add<ENCODING>(layout, group, group_codes, group_sums);
            for (int i = 0; i < NARROW; i++) {
                float* total = totals + row * PANEL + 16 * i;
                Floats added = scales.add_scaled(is_first ? Floats{} : load16(total), group_sums[i], x_sum, i);
                if (is_last)
                    store16(out + row * PANEL + 16 * i, added * x.scales[first_row + row]);
                else
                    store16(total, added);
            }
        }
    }
}

bool takes_tiles(const QuantizedLayout& layout, int64_t rows) {
    return rows >= TILED_ROWS && layout.step() == 64 && amx::is_granted();
}
#endif

template <Encoding ENCODING>
void multiply(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
              int64_t first_row, int64_t rows, float* sums) {
#if HAS_AMX_INT8
    if (takes_tiles(layout, rows)) return multiply_tiles<ENCODING>(layout, panel, next, x, first_row, rows, sums);
#endif
    multiply_in_registers<ENCODING>(layout, panel, next, x, first_row, rows, sums);
}

}  // namespace

void multiply_quantized(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                        int64_t first_row, int64_t rows, float* sums) {
    switch (layout.encoding) {
        case Encoding::INT8: return multiply<Encoding::INT8>(layout, panel, next, x, first_row, rows, sums);
        case Encoding::INT4: return multiply<Encoding::INT4>(layout, panel, next, x, first_row, rows, sums);
        case Encoding::E2M1: return multiply<Encoding::E2M1>(layout, panel, next, x, first_row, rows, sums);
        case Encoding::INT6: return multiply<Encoding::INT6>(layout, panel, next, x, first_row, rows, sums);
        case Encoding::IQ4: return multiply<Encoding::IQ4>(layout, panel, next, x, first_row, rows, sums);
    }
}

QuantizedProducts::QuantizedProducts(const QuantizedLayout& layout, int64_t rows) : has_tiles_(false) {
#if HAS_AMX_INT8
    has_tiles_ = takes_tiles(layout, rows);
    static constexpr amx::Config config;
    if (has_tiles_) _tile_loadconfig(&config);
#endif
}

QuantizedProducts::~QuantizedProducts() {
#if HAS_AMX_INT8
    if (has_tiles_) _tile_release();
#endif
}
