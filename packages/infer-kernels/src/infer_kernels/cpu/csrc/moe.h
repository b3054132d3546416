// How tokens are grouped by their experts, and how threads share the experts' panels; the numbering is that of moe.cpp.
#pragma once

#include "team.h"

constexpr int64_t BLOCK_ROWS = 96;

struct Block {
    int32_t expert;
    int32_t first;  // place
    int32_t rows;
};

// What `group` finds out, in memory that the caller lends.
struct Routing {
    int32_t* place_of_pair;  // [pairs]; -1 where the id is that of no expert
    int32_t* pair_of_place;  // [pairs]
    int32_t* sizes;          // the number of blocks and that of places
    int32_t* ends;           // [experts]
    Block* blocks;           // [pairs / BLOCK_ROWS + the lesser of experts and pairs]
};

// Calls `arrange(block)` and then `use(block, first panel, last panel)` for every block's panels; each thread arranges the
// inputs of a block before it uses them.
template <class Arrange, class Use>
static inline void for_expert_panels(Team& team, const Routing& routing, int64_t panels, Arrange arrange, Use use) {
    int64_t blocks = routing.sizes[0];
    int64_t taken = std::min(panels, std::max<int64_t>(1, blocks * panels / (team.size * 8)));
    int64_t pieces = (panels + taken - 1) / taken, arranged = -1;
    for (int64_t item; (item = team.take()) < blocks * pieces;) {
        const Block& block = routing.blocks[item / pieces];
        if (item / pieces != arranged) arrange(block);
        arranged = item / pieces;
        int64_t first = item % pieces * taken;
        use(block, first, std::min(first + taken, panels) - 1);
    }
}
