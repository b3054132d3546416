// The experts' MLPs of a mixture of experts, as five kernels with a barrier after each.
//
//     pairs        (token, k) of every token and each of its experts, numbered token * chosen + k
//     places       the pairs in order of their experts; those of one expert keep their order
//     blocks       up to BLOCK_ROWS places of one expert, which meet each panel of its weights together
//
//     group        pairs -> places and blocks
//     products     rows of x, by pair, times gate_up; by place
//     activation   of these, in place
//     products     times down; by place
//     sum          of a token's rows, found by its pairs
//
// Routing is read from memory, and all scratch has room for any. A row meets the same arithmetic in every block.
#include "dense_amx.h"
#include "exponentials.h"
#include "moe.h"

namespace {

struct Group {
    Rows tokens;
    const void* ids;  // [tokens, chosen]
    int64_t ids_bytes;  // 4 or 8
    int64_t chosen;    // experts of a token
    int64_t experts;
    Routing routing;
};

void group(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Group*>(arguments);
    if (team.take() > 0) return;  // one thread: counting is nothing beside the products
    int64_t pairs = a.tokens.count() * a.chosen;
    auto expert_of = [&](int64_t pair) {
        int64_t id = a.ids_bytes == 4 ? ((const int32_t*)a.ids)[pair] : ((const int64_t*)a.ids)[pair];
        return id >= 0 && id < a.experts ? id : -1;
    };
    int32_t* ends = a.routing.ends;
    std::fill(ends, ends + a.experts, 0);
    for (int64_t pair = 0; pair < pairs; pair++)
        if (int64_t expert = expert_of(pair); expert >= 0) ends[expert]++;
    int32_t num_blocks = 0, place = 0;
    for (int64_t expert = 0; expert < a.experts; expert++) {
        int32_t rows = ends[expert];
        ends[expert] = place;
        for (int32_t left = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS; left > 0; left--) {  // as equal as possible
            int32_t taken = rows / left;
            a.routing.blocks[num_blocks++] = {(int32_t)expert, place, taken};
            place += taken;
            rows -= taken;
        }
    }
    a.routing.sizes[0] = num_blocks;
    a.routing.sizes[1] = place;
    for (int64_t pair = 0; pair < pairs; pair++) {
        int64_t expert = expert_of(pair);
        int32_t at = expert < 0 ? -1 : ends[expert]++;
        a.routing.place_of_pair[pair] = at;
        if (at >= 0) a.routing.pair_of_place[at] = (int32_t)pair;
    }
}

template <class T>
struct Products {
    Rows tokens;
    T* out;  // [places, outputs]
    int64_t out_stride;
    const T* x;  // [tokens, inputs], or, where `chosen` is 0, [places, inputs]
    int64_t x_stride;
    const T* panels;  // [experts] layers in panels
    OrNull<const T> bias;  // [experts, outputs]
    int64_t bias_stride;
    int64_t inputs;
    int64_t outputs;
    int64_t chosen;
    Routing routing;
};

// Where the inputs of a block's row lie.
template <class T>
const T* row_of(const Products<T>& a, const Block& block, int64_t row) {
    int64_t place = block.first + row;
    return a.x + (a.chosen ? a.routing.pair_of_place[place] / a.chosen : place) * a.x_stride;
}

// Returns memory of this thread for `count` inputs that are arranged.
template <class T>
T* memory_for_inputs(int64_t count) {
    static thread_local std::vector<float> own;
    size_t needed = count * sizeof(T) / sizeof(float) + 1;
    if (own.size() < needed) own.resize(needed);
    return reinterpret_cast<T*>(own.data());
}

// Returns a block's inputs, tile by tile as `copy_tiles` orders them.
template <class X, class T>
const X* arrange_block(const Products<T>& a, const Block& block) {
    int64_t inputs = padded<T>(a.inputs);
    if constexpr (std::is_same_v<T, X>)
        if (block.rows == 1 && a.inputs == inputs) return row_of(a, block, 0);
    X* copies = memory_for_inputs<X>(block.rows * inputs);
    copy_tiles<T>(copies, [&](int64_t row) { return row_of(a, block, row); }, a.inputs, block.rows, [] { return true; });
    return copies;
}

#if HAS_AMX_BF16
// Returns a block's inputs where they lie, unless its rows lie apart or are no multiple of what a tile holds.
TileInputs tile_inputs(const Products<bf16>& a, const Block& block) {
    int64_t inputs = inputs_of_tiles(a.inputs);
    if (inputs == a.inputs && (!a.chosen || block.rows == 1)) return {row_of(a, block, 0), a.x_stride};
    bf16* copies = memory_for_inputs<bf16>(block.rows * inputs);
    for (int64_t row = 0; row < block.rows; row++) copy_tile_inputs(copies + row * inputs, row_of(a, block, row), a.inputs);
    return {copies, inputs};
}
#endif

// Calls `arrange(block)` and `multiply(layer, block, panel, next)` for all panels of all blocks; `next` may be null.
template <class T, class Arrange, class Multiply>
void for_layers(const Products<T>& a, Team& team, Arrange arrange, Multiply multiply) {
    int64_t panels = (a.outputs + PANEL - 1) / PANEL;
    for_expert_panels(team, a.routing, panels, arrange, [&](const Block& block, int64_t first, int64_t last) {
        Layer<T> layer{a.out + block.first * a.out_stride,
                       a.out_stride,
                       a.panels + block.expert * panels * panel_size<NARROW, T>(a.inputs),
                       a.bias ? a.bias + block.expert * a.bias_stride : nullptr,
                       a.inputs,
                       a.outputs};
        for (int64_t panel = first; panel <= last; panel++)
            multiply(layer, block, panel, panel < last ? layer.panel(panel + 1) : nullptr);
    });
}

template <class T>
void products(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Products<T>*>(arguments);
#if HAS_AMX_BF16
    if constexpr (std::is_same_v<T, bf16>)
        if (amx::is_granted()) {
            TileInputs x{};
            amx::RowTiles tiles(0);
            return for_layers(
                a, team,
                [&](const Block& block) {
                    x = tile_inputs(a, block);
                    tiles = amx::RowTiles(block.rows);
                    amx::configure(tiles.height);
                },
                [&](const Layer<bf16>& layer, const Block&, int64_t panel, const bf16* next) {
                    multiply_panel_in_tiles(layer, x, tiles, panel, next, 0, tiles.count);
                });
        }
#endif
    const T* tiles = nullptr;
    const float* widened = nullptr;
    for_layers(
        a, team,
        [&](const Block& block) {
            if constexpr (WIDENS<T>) {
                widened = block.rows > TILE_ROWS<T, T> ? arrange_block<float>(a, block) : nullptr;
                if (widened) return;
            }
            tiles = arrange_block<T>(a, block);
        },
        [&](const Layer<T>& layer, const Block& block, int64_t panel, const T* next) {
            if constexpr (WIDENS<T>)
                if (widened) return multiply_panel(layer, widened, panel, next, 0, block.rows);
            multiply_panel(layer, tiles, panel, next, 0, block.rows);
        });
}

template <class T>
struct Activation {
    Rows tokens;
    T* gate_up;  // [places, 2 * width]: the gates, which the result replaces, and the ups
    int64_t width;
    int64_t is_gelu;
    double alpha;  // of silu
    double limit;
    double up_offset;
    Routing routing;
};

template <class T>
void activation(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Activation<T>*>(arguments);
    float alpha = (float)a.alpha, offset = (float)a.up_offset;
    Floats limit = splat((float)a.limit);
    for_rows(team, a.routing.sizes[1], [&](int64_t place) {
        T* gates = a.gate_up + place * 2 * a.width;
        for (int64_t i = 0; i < a.width; i += 16) {
            int64_t left = a.width - i;
            Floats gate = load_some(gates + i, left), up = load_some(gates + a.width + i, left);
            gate = choose(gate > limit, limit, gate);
            up = choose(up > limit, limit, choose(up < -limit, -limit, up));
            Floats activated = a.is_gelu ? gelu_tanh(gate) : gate / (1.0f + exp16(-alpha * gate));
            store_some(gates + i, rounded<T>(activated) * (up + offset), left);
        }
    });
}

template <class T>
struct Sum {
    Rows tokens;
    T* out;
    int64_t out_stride;
    const T* products;  // [places, hidden]
    const float* weights;  // [tokens, chosen]
    int64_t hidden;
    int64_t chosen;
    Routing routing;
};

template <class T>
void sum(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Sum<T>*>(arguments);
    for_rows(team, a.tokens.count(), [&](int64_t token) {
        const int32_t* places = a.routing.place_of_pair + token * a.chosen;
        bool is_whole = std::all_of(places, places + a.chosen, [](int32_t place) { return place >= 0; });
        for (int64_t i = 0; i < a.hidden; i += 16) {
            Floats total{};
            if (!is_whole) total = splat(__builtin_nanf(""));  // a step that is replayed cannot raise an error
            for (int64_t k = 0; k < a.chosen && is_whole; k++)
                total = add_product(total, load_some(a.products + places[k] * a.hidden + i, a.hidden - i),
                                    a.weights[token * a.chosen + k]);
            store_some(a.out + token * a.out_stride + i, total, a.hidden - i);
        }
    });
}

}  // namespace

extern "C" {
void moe_group(const void* arguments, Team& team) { group(arguments, team); }
void moe_products(const void* arguments, Team& team) { products<Element>(arguments, team); }
void moe_activation(const void* arguments, Team& team) { activation<Element>(arguments, team); }
void moe_sum(const void* arguments, Team& team) { sum<Element>(arguments, team); }
}
