// Causal convolutions of each channel over a few tokens: y[t] = weight[0] * x[t - width + 1] + ... + weight.back() * x[t].
//
//     inputs    state, or zeros | rows of this step           a window moves over them: a ring of `width` rows
//               . . .           | x0 x1 x2 x3 ...             |. . . x0|  |. . x0 x1|  |. x0 x1 x2| ...
//
// A piece of work is a block of channels of all sequences in turn, so that taps become floats once, and a sequence may go on
// from what the one before it writes. Channels do not meet, and a channel's sum is taken from its oldest input to its newest:
// no bit depends on the blocks or on the steps.
#include <algorithm>
#include <memory>

#include "conversions.h"
#include "exponentials.h"
#include "state_rows.h"

namespace {

constexpr int64_t MOST_WIDTH = 16;
constexpr int64_t MOST_CHANNELS = 256, LEAST_CHANNELS = 32;  // of a block

template <class T>
struct Convolution {
    StateRows rows;
    T* out;  // [tokens, channels]
    const T* x;  // [tokens, channels]; gated: [tokens, 3 * channels], rows of b, c and x
    int64_t x_stride;
    T* state;  // [slots, width - 1, channels]
    int64_t state_stride_slot;
    int64_t state_stride_row;
    const T* weight;  // [channels, width]
    int64_t weight_stride;
    OrNull<const T> bias;
    int64_t channels;
    int64_t width;
    int64_t has_silu;
};

// A thread's memory for one block of channels.
struct Block {
    alignas(64) float taps[MOST_WIDTH][MOST_CHANNELS];
    alignas(64) float ring[MOST_WIDTH][MOST_CHANNELS];
};

template <class T, bool IS_GATED>
void convolve_block(const Convolution<T>& a, Block& block, int64_t first, int64_t count) {
    const int64_t width = a.width, before = width - 1;
    for (int64_t tap = 0; tap < width; tap++) {
        const T* from = a.weight + first * a.weight_stride + tap;
        for (int64_t channel = 0; channel < count; channel++)
            block.taps[tap][channel] = to_float(from[channel * a.weight_stride]);
    }
    for (int64_t seq = 0; seq < a.rows.seqs.count(); seq++) {
        const int64_t read = a.rows.read[seq], write = a.rows.write[seq];
        const int64_t first_row = a.rows.first_row(seq), end_row = a.rows.end_row(seq);
        const auto state = [&](int64_t slot, int64_t row) {
            return a.state + slot * a.state_stride_slot + row * a.state_stride_row + first;
        };
        float* window[MOST_WIDTH];  // rows of the ring, the oldest input's first; the last is free
        for (int64_t row = 0; row < width; row++) window[row] = block.ring[row];
        for (int64_t row = 0; row < before; row++)
            for (int64_t i = 0; i < count; i += 16)
                store_vector(window[row] + i, read < 0 ? Floats{} : load_some(state(read, row) + i, count - i));
        for (int64_t token = first_row; token < end_row; token++) {
            const T* x = a.x + token * a.x_stride + first;
            T* out = a.out + token * a.channels + first;
            for (int64_t i = 0; i < count; i += 16) {
                const int64_t left = count - i;
                Floats input = load_some(x + i, left), y{};
                if (IS_GATED) input = rounded<T>(input * load_some(x + 2 * a.channels + i, left));
                store_vector(window[before] + i, input);
                for (int64_t tap = 0; tap < width; tap++)
                    y = add_product(y, load_vector<Floats>(window[tap] + i), load_vector<Floats>(block.taps[tap] + i));
                if (a.bias) y += load_some(a.bias + first + i, left);
                if (a.has_silu) {
                    y = rounded<T>(y);
                    y = y / (1.0f + exp16(-y));
                }
                if (IS_GATED) y = rounded<T>(y) * load_some(x + a.channels + i, left);
                store_some(out + i, y, left);
            }
            std::rotate(window, window + 1, window + width);
        }
        if (write < 0) continue;
        for (int64_t row = 0; row < before; row++) {
            const int64_t moved = row + end_row - first_row;  // where it was among the rows that were read
            if (moved < before && read >= 0)
                std::memcpy(state(write, row), state(read, moved), count * sizeof(T));
            else
                for (int64_t i = 0; i < count; i += 16)
                    store_some(state(write, row) + i, load_vector<Floats>(window[row] + i), count - i);
        }
    }
}

template <class T, bool IS_GATED>
void convolve(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Convolution<T>*>(arguments);
    static thread_local const std::unique_ptr<Block> block(new Block);
    int64_t share = (a.channels / (team.size * 4) + 15) / 16 * 16;
    int64_t taken = std::min(MOST_CHANNELS, std::max(LEAST_CHANNELS, share));
    for (int64_t first; (first = team.take(taken)) < a.channels;)
        convolve_block<T, IS_GATED>(a, *block, first, std::min(taken, a.channels - first));
}

}  // namespace

extern "C" {
void causal_convolution(const void* arguments, Team& team) { convolve<Element, false>(arguments, team); }
void gated_convolution(const void* arguments, Team& team) { convolve<Element, true>(arguments, team); }
}
