// The inner loops of products and conversions as functions of their own, whose instructions `test_arm_instructions.py` counts.
#include "product.h"
#include "quantized_words.h"

namespace {

template <Encoding ENCODING>
ALWAYS_INLINE inline Ints add_word(Ints sums, const uint8_t* panel, const uint32_t* inputs) {
    return add_bytes<ENCODING>(sums, load_word<ENCODING>(panel, 0, 0), *inputs);
}

template <int ROWS, class T>
ALWAYS_INLINE inline void multiply_tile(float* out, const T* x, const T* panel, int64_t inputs) {
    Floats sums[ROWS][NARROW] = {};
    constexpr int64_t together = INPUTS_TOGETHER<T>;
    add_product<ROWS, NARROW>(sums, Inputs<T>{x, together, together * ROWS}, panel, inputs);
    for (int i = 0; i < ROWS * NARROW; i++) store16(out + 16 * i, sums[i / NARROW][i % NARROW]);
}

}  // namespace

extern "C" {

void int8_word(Ints* sums, const uint8_t* panel, const uint32_t* inputs) { *sums = add_word<Encoding::INT8>(*sums, panel, inputs); }
void int4_word(Ints* sums, const uint8_t* panel, const uint32_t* inputs) { *sums = add_word<Encoding::INT4>(*sums, panel, inputs); }
void iq4_word(Ints* sums, const uint8_t* panel, const uint32_t* inputs) { *sums = add_word<Encoding::IQ4>(*sums, panel, inputs); }
void from_fp16(Floats* to, const fp16* from) { *to = load16(from); }
void to_fp16(fp16* to, const Floats* from) { store16(to, *from); }
void from_bf16(Floats* to, const bf16* from) { *to = load16(from); }
void to_bf16(bf16* to, const Floats* from) { store16(to, *from); }
void to_whole(Floats* to, const Floats* from) { *to = nearest_whole(*from); }
void to_codes(int8_t* to, const Ints* from) { store_bytes(to, *from); }
void from_codes(Ints* to, const int8_t* from) { *to = widen_codes(from); }
void fp32_tile(float* out, const float* x, const float* panel, int64_t inputs) { multiply_tile<6>(out, x, panel, inputs); }
void fp16_tile(float* out, const fp16* x, const fp16* panel, int64_t inputs) { multiply_tile<6>(out, x, panel, inputs); }
void bf16_tile(float* out, const bf16* x, const bf16* panel, int64_t inputs) { multiply_tile<6>(out, x, panel, inputs); }
}
