// How threads share the panels of a dense layer.
#pragma once

#include <vector>

#include "team.h"

// Rows whose inputs stay in a core's cache while panel after panel meets them.
constexpr int64_t CACHED_BYTES = 1 << 19;
// Inputs that are arranged before their products. Few rows are arranged by each thread, all of them in its own memory, so that
// none waits for another; from SHARED_ROWS on by all together.
class Arrangement {
   public:
    static constexpr int64_t SHARED_ROWS = 64;

    // Memory for `count` floats.
    Arrangement(Team& team, int64_t rows, size_t count) : team_(team), is_shared_(rows >= SHARED_ROWS) {
        static thread_local std::vector<float> own;
        if (!is_shared_ && own.size() < count) own.resize(count);
        memory = is_shared_ ? team.shared(count) : own.data();
        mine_ = is_shared_ ? team.take() : 0;
    }

    float* memory;

    // Asked for one part after the other: whether this thread arranges it.
    bool is_mine() {
        if (!is_shared_) return true;
        if (part_++ != mine_) return false;
        mine_ = team_.take();
        return true;
    }

    // Returns when all parts are arranged.
    void end() {
        if (is_shared_) team_.barrier();
    }

   private:
    Team& team_;
    const bool is_shared_;
    int64_t mine_, part_ = 0;
};

// Calls `use(panel, next, first_row, rows)` for every panel and every block of `row_block` rows, each in one thread; `next`
// is the panel that the thread will want afterwards, or -1 if that is not known, or the same.
template <class Use>
static inline void for_panels(Team& team, int64_t rows, int64_t row_block, int64_t panels, Use use) {
    int64_t taken = team.panels_of_piece(panels);
    int64_t pieces = (panels + taken - 1) / taken, blocks = (rows + row_block - 1) / row_block;
    team.for_pieces(blocks * pieces, [&](int64_t item, int64_t next_item) {
        int64_t first_row = item / pieces * row_block, first = item % pieces * taken;
        int64_t last = std::min(first + taken, panels) - 1, after = next_item < 0 ? last : next_item % pieces * taken;
        for (int64_t panel = first; panel <= last; panel++) {
            int64_t next = panel < last ? panel + 1 : after;
            use(panel, next == panel ? -1 : next, first_row, std::min(row_block, rows - first_row));
        }
    });
}
