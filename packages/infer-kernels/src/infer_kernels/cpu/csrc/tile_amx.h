// Products of up to 16 rows with a packed tile of keys and values, by matrix instructions (see amx.h).
#pragma once

#include "amx.h"
#include "tile.h"

namespace {

// Whether queries and probabilities of type C take matrix instructions, whatever the number of rows.
template <class C>
inline bool takes_amx() {
    return std::is_same_v<C, bf16> && HAS_AMX_BF16 && amx::is_granted();
}

#if HAS_AMX_BF16

constexpr int64_t PANEL_BYTES = PANEL * 2 * sizeof(bf16);  // of two inputs

// The sixteen outputs of panels from `output` on.
inline const bf16* part_of_panels(const bf16* panels, int64_t output, int64_t inputs) {
    return panels + output / PANEL * panel_size<WIDE, bf16>(inputs) + output % PANEL * 2;
}

// Scores of rows of `queries` [rows, depth] with a tile's keys, to `scores` [rows, TILE].
inline void multiply_keys(float* scores, const bf16* queries, const bf16* keys, int64_t depth) {
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
    const bf16* parts[4];
    for (int i = 0; i < 4; i++) parts[i] = part_of_panels(keys, 16 * i, depth);
    for (int64_t k = 0; k < depth; k += amx::INPUTS) {
        amx::load<4>(queries + k, depth * sizeof(bf16));
        amx::load<6>(parts[0] + k * PANEL, PANEL_BYTES);
        amx::multiply<0, 4, 6>();
        amx::load<7>(parts[1] + k * PANEL, PANEL_BYTES);
        amx::multiply<1, 4, 7>();
        amx::load<6>(parts[2] + k * PANEL, PANEL_BYTES);
        amx::multiply<2, 4, 6>();
        amx::load<7>(parts[3] + k * PANEL, PANEL_BYTES);
        amx::multiply<3, 4, 7>();
    }
    amx::store<0>(scores, TILE * sizeof(float));
    amx::store<1>(scores + 16, TILE * sizeof(float));
    amx::store<2>(scores + 32, TILE * sizeof(float));
    amx::store<3>(scores + 48, TILE * sizeof(float));
}

// Adds the products of `probabilities` [rows, TILE] with a tile's values to rows of `sums`, `stride` apart.
inline void multiply_values(float* sums, int64_t stride, const bf16* probabilities, const bf16* values, int64_t head_dim) {
    constexpr int64_t HALF = amx::INPUTS;  // of a tile's keys
    amx::load<4>(probabilities, TILE * sizeof(bf16));
    amx::load<5>(probabilities + HALF, TILE * sizeof(bf16));
    auto add = [&](auto tile, int64_t i) {
        const bf16* part = part_of_panels(values, i, TILE);
        amx::load<tile>(sums + i, stride * sizeof(float));
        amx::load<6>(part, PANEL_BYTES);
        amx::multiply<tile, 4, 6>();
        amx::load<7>(part + HALF * PANEL, PANEL_BYTES);
        amx::multiply<tile, 5, 7>();
        amx::store<tile>(sums + i, stride * sizeof(float));
    };
    for (int64_t i = 0; i < head_dim; i += 32) {  // two chains, which do not wait for each other
        add(std::integral_constant<int, 0>{}, i);
        if (i + 16 < head_dim) add(std::integral_constant<int, 1>{}, i + 16);
    }
}

#endif

}  // namespace
