// The product of up to 32 rows of eight bits with a panel of eight, six or four bits (see quantized.h).
#include "amx.h"
#include "quantized_outliers.h"
#include "quantized_pairs.h"

namespace {

constexpr int MOST_ROWS = SUMS_AT_ONCE / NARROW;  // whose sums stay in registers
// Rows whose totals stay there too, and groups of so few inputs that the totals are needed so often that tiles of few rows are
// faster. Twelve chains of sums hide what one addition takes, eight just do; tiles of the fewest rows have two for each sum.
#if defined(__AVX512F__)
constexpr int FEW_ROWS = MOST_ROWS / 2;
constexpr int CHAINED_ROWS = 3;
constexpr int64_t SMALL_GROUP = 64;
#else
constexpr int FEW_ROWS = MOST_ROWS / 3;
constexpr int CHAINED_ROWS = 1;
constexpr int64_t SMALL_GROUP = 0;
#endif
constexpr int64_t TILED_ROWS = 8;  // from so many rows on, matrix instructions are faster where a CPU has them

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define HAS_SHORT_SUMS 1
// Steps whose products fit sums of 16 bits, each of four bytes times inputs of up to 128; 0: one alone may not.
template <Encoding ENCODING>
constexpr int SHORT_STEPS = INT16_MAX / (4 * 128 * traits_of(ENCODING).largest);
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

// Bytes of the codes of so many steps.
template <Encoding ENCODING>
int64_t bytes_of(int64_t steps) {
    return steps * UNIT_BYTES<ENCODING> / UNIT<ENCODING>;
}

// As `multiply_rows`, where a group is one call: its sums stay in registers.
template <Encoding ENCODING, int ROWS>
void multiply_small_groups(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next,
                           const QuantizedRows& x, int64_t first_row, float* out) {
    int64_t groups = layout.groups();
    Floats totals[ROWS][NARROW] = {};
    BlockFactors factors;
    for (int64_t group = 0; group < groups; group++) {
        panel = factors.read(layout, group, panel);
        int64_t steps = std::min<int64_t>(layout.padded_inputs(group) / 8, CALL_STEPS<ENCODING>);
        int64_t bytes = bytes_of<ENCODING>(steps);
        Ints sums[ROWS][NARROW];
        GroupScales scales(layout, panel + bytes, factors);
        auto finish = [&](int row, int vector, Ints products, bool is_first, bool is_last) {
            if (!is_first) products += sums[row][vector];
            if (!is_last) {
                sums[row][vector] = products;
                return;
            }
            int32_t x_sum = x.sums[(first_row + row) * groups + group];
            totals[row][vector] = scales.add_scaled(totals[row][vector], products, x_sum, vector);
        };
        const int8_t* at = x.codes + first_row * x.stride + group * layout.group_size;
        multiply_short_steps<ENCODING, ROWS>(panel, at, x.stride, steps, finish);
        panel += bytes + layout.scale_bytes();
        if (!next) continue;
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
        next += bytes;
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < NARROW; i++) store16(out + row * PANEL + 16 * i, totals[row][i]);
}
#else
#define HAS_SHORT_SUMS 0
#endif

template <Encoding ENCODING, int ROWS>
void multiply_rows(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                   int64_t first_row, float* out) {
    constexpr int CHAINS = ROWS <= CHAINED_ROWS ? 2 : 1;  // of whole numbers, whose order does not matter
    int64_t groups = layout.groups();
    const int8_t* rows = x.codes + first_row * x.stride;
    Floats totals[ROWS][NARROW];
    unrolled<ROWS * NARROW>([&](auto i) ALWAYS_INLINE { totals[i / NARROW][i % NARROW] = Floats{}; });
    BlockFactors factors;
    bool has_zero = ROWS <= FEW_ROWS && layout.beside != Beside::ZEROS && layout.zero_byte() != 0;
    for (int64_t group = 0; group < groups; group++) {
        panel = factors.read(layout, group, panel);
        const int32_t* x_sums = x.sums + first_row * groups + group;
        int64_t steps = layout.padded_inputs(group) / 8;
        Ints sums[CHAINS][ROWS][NARROW];
        unrolled<CHAINS * ROWS * NARROW>([&](auto i) ALWAYS_INLINE {
            sums[i / (ROWS * NARROW)][i / NARROW % ROWS][i % NARROW] = Ints{};
        });
        if (has_zero) unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
            Ints added = Ints{} + x.starts[(first_row + row) * groups + group];
            unrolled<NARROW>([&](auto i) ALWAYS_INLINE { sums[0][row][i] = added; });
        });
        const int8_t* at = rows + group * layout.group_size;
        auto add = [&](auto chain, const Words (&weights)[NARROW], int64_t first) ALWAYS_INLINE {
            unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
                uint32_t inputs;
                std::memcpy(&inputs, at + row * x.stride + first, 4);
                unrolled<NARROW>([&](auto i) ALWAYS_INLINE {
                    sums[chain][row][i] = add_bytes<ENCODING>(sums[chain][row][i], weights[i], inputs);
                });
            });
        };
        auto ask = [&](int64_t bytes) {
            if (!next) return;
            for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
            next += bytes;
        };
#if HAS_SHORT_SUMS
        if constexpr (SHORT_STEPS<ENCODING> > 0) {
            for (; steps > 0; steps -= CALL_STEPS<ENCODING>, at += 8 * CALL_STEPS<ENCODING>) {
                int64_t taken = std::min<int64_t>(steps, CALL_STEPS<ENCODING>);
                auto add_up = [&](int row, int vector, Ints products, bool, bool) { sums[0][row][vector] += products; };
                multiply_short_steps<ENCODING, ROWS>(panel, at, x.stride, taken, add_up);
                panel += bytes_of<ENCODING>(taken);
                ask(bytes_of<ENCODING>(taken));
            }
        }
#endif
        for (; steps > 0; steps -= UNIT<ENCODING>) {
            ask(UNIT_BYTES<ENCODING>);
            unrolled<UNIT<ENCODING>>([&](auto step) ALWAYS_INLINE {
                Words first[NARROW], second[NARROW];
                unrolled<NARROW>([&](auto i) ALWAYS_INLINE { first[i] = load_word<ENCODING>(panel, 2 * step, i); });
                unrolled<NARROW>([&](auto i) ALWAYS_INLINE { second[i] = load_word<ENCODING>(panel, 2 * step + 1, i); });
                add(std::integral_constant<int, 0>{}, first, 0);
                add(std::integral_constant<int, CHAINS - 1>{}, second, 4);
                at += 8;
            });
            panel += UNIT_BYTES<ENCODING>;
        }
        GroupScales scales(layout, panel, factors);
        panel += layout.scale_bytes();
        auto add_scaled = [&](auto beside) ALWAYS_INLINE {
            unrolled<ROWS>([&](auto row) ALWAYS_INLINE {
                int32_t x_sum = x_sums[row * groups];
                unrolled<NARROW>([&](auto i) ALWAYS_INLINE {
                    Ints sum = sums[0][row][i];
                    if constexpr (CHAINS > 1) sum += sums[CHAINS - 1][row][i];
                    totals[row][i] = scales.template add_whole<beside.value>(totals[row][i], sum, x_sum, i);
                });
            });
        };
        if constexpr (ROWS > FEW_ROWS) {  // three ways to go on would take long to compile
            unrolled<ROWS * NARROW>([&](auto i) ALWAYS_INLINE {
                const int row = i / NARROW, part = i % NARROW;
                Ints sum = sums[0][row][part];
                if constexpr (CHAINS > 1) sum += sums[CHAINS - 1][row][part];
                totals[row][part] = scales.add_scaled(totals[row][part], sum, x_sums[row * groups], part);
            });
        } else {
            switch (layout.beside) {
                case Beside::ZEROS: add_scaled(std::integral_constant<Beside, Beside::ZEROS>{}); break;
                case Beside::MINIMUMS: add_scaled(std::integral_constant<Beside, Beside::MINIMUMS>{}); break;
                case Beside::NOTHING: add_scaled(std::integral_constant<Beside, Beside::NOTHING>{}); break;
            }
        }
    }
    auto store = [&](auto i) ALWAYS_INLINE {
        store16(out + 16 * i, totals[i / NARROW][i % NARROW]);
    };
    if constexpr (ROWS <= FEW_ROWS)
        unrolled<ROWS * NARROW>(store);
    else  // a number that is no constant keeps totals in memory, and leaves the registers to sums
        for (int i = 0; i < ROWS * NARROW; i++) store(i);
}

template <Encoding ENCODING>
void multiply_in_registers(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next,
                           const QuantizedRows& x, int64_t first_row, int64_t rows, float* sums) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    for_row_tiles<6>(rows, [&](int64_t start, auto num_rows) {
        const uint8_t* asked = start + num_rows == rows ? next : nullptr;
        float* to = sums + start * PANEL;
        if constexpr (num_rows == 1)
            multiply_rows<ENCODING, 1>(layout, panel, asked, x, first_row + start, to);
        else
            multiply_pairs<ENCODING, (num_rows + 1) / 2>(layout, panel, asked, x, first_row + start, num_rows, to);
    });
#else
    auto multiply = [&](int64_t start, auto num_rows) {
        const uint8_t* asked = start + num_rows == rows ? next : nullptr;
#if HAS_SHORT_SUMS
        if (SHORT_STEPS<ENCODING> > 0 && layout.padded_inputs(0) <= 8 * CALL_STEPS<ENCODING>) {
            float* to = sums + start * PANEL;
            return multiply_small_groups<ENCODING, num_rows>(layout, panel, asked, x, first_row + start, to);
        }
#endif
        multiply_rows<ENCODING, num_rows>(layout, panel, asked, x, first_row + start, sums + start * PANEL);
    };
    // Weights of other encodings have small groups; tiles of many rows for them would take long to compile.
    constexpr bool IS_ALWAYS_SMALL = SMALL_GROUP > 0 && ENCODING != Encoding::INT8 && ENCODING != Encoding::INT4;
    if constexpr (!IS_ALWAYS_SMALL) {
        if (layout.group_size > SMALL_GROUP || layout.groups() == 1) return for_row_tiles<MOST_ROWS>(rows, multiply);
    }
    for_row_tiles<FEW_ROWS>(rows, multiply);
#endif
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
    int64_t groups = layout.groups();
    bool has_second = rows > 16;
    const int8_t* inputs = x.codes + first_row * x.stride;
    BlockFactors factors;
    for (int64_t group = 0; group < groups; group++) {
        const int8_t* at = inputs + group * layout.group_size;
        panel = factors.read(layout, group, panel);
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
            for (int i = 0; i < NARROW; i++) {
                float* total = totals + row * PANEL + 16 * i;
                Floats added = scales.add_scaled(is_first ? Floats{} : load16(total), group_sums[i], x_sum, i);
                if (is_last)
                    store16(out + row * PANEL + 16 * i, added);
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

// Multiplies digits 0.
template <Encoding ENCODING>
void multiply_bytes(const QuantizedLayout& layout, const uint8_t* panel, const uint8_t* next, const QuantizedRows& x,
                    int64_t first_row, int64_t rows, float* sums) {
#if HAS_AMX_INT8
    if (takes_tiles(layout, rows)) return multiply_tiles<ENCODING>(layout, panel, next, x, first_row, rows, sums);
#endif
    multiply_in_registers<ENCODING>(layout, panel, next, x, first_row, rows, sums);
}

thread_local std::vector<OutlierList> lists_of_thread;

}  // namespace

template <Encoding ENCODING>
void QuantizedProducts::multiply(const uint8_t* panel, const uint8_t* next, const QuantizedRows& x, int64_t first_row,
                                 int64_t rows, float* sums) {
    multiply_bytes<ENCODING>(layout_, panel, next, x, first_row, rows, sums);
    auto add = [&](auto beside) {
        if (rows > FEW_ROWS) return multiply_listed<ENCODING, beside.value>(layout_, panel, list_of(x, first_row, rows), sums);
        for (int64_t row = 0; row < rows; row++)
            multiply_outliers<ENCODING, beside.value>(layout_, panel, x, first_row + row, sums + row * PANEL);
    };
    switch (layout_.beside) {
        case Beside::ZEROS: add(std::integral_constant<Beside, Beside::ZEROS>{}); break;
        case Beside::MINIMUMS: add(std::integral_constant<Beside, Beside::MINIMUMS>{}); break;
        case Beside::NOTHING: add(std::integral_constant<Beside, Beside::NOTHING>{}); break;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = row * PANEL; i < (row + 1) * PANEL; i += 16)
            store16(sums + i, load16(sums + i) * x.scales[first_row + row]);
}

void QuantizedProducts::multiply(const uint8_t* panel, const uint8_t* next, const QuantizedRows& x, int64_t first_row,
                                 int64_t rows, float* sums) {
    switch (layout_.encoding) {
#define CASE(NAME) \
    case Encoding::NAME: return multiply<Encoding::NAME>(panel, next, x, first_row, rows, sums);
        FOR_ENCODINGS(CASE)
#undef CASE
    }
}

const OutlierList& QuantizedProducts::list_of(const QuantizedRows& x, int64_t first_row, int64_t rows) {
    for (size_t i = 1; i <= num_lists_; i++) {  // most often it is the one after the last
        size_t number = (last_list_ + i) % num_lists_;
        if (lists_[number].first_row != first_row || lists_[number].rows != rows) continue;
        last_list_ = number;
        return lists_[number];
    }
    if (num_lists_ == lists_.size()) lists_.emplace_back();
    last_list_ = num_lists_++;
    OutlierList& list = lists_[last_list_];
    list.first_row = first_row;
    list.rows = rows;
    list_outliers(layout_, x, list);
    return list;
}

void QuantizedProducts::forget_rows() { num_lists_ = 0; }

QuantizedProducts::QuantizedProducts(const QuantizedLayout& layout, int64_t rows)
    : layout_(layout), has_tiles_(false), lists_(lists_of_thread) {
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
