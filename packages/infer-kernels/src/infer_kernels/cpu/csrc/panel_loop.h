// How threads share the panels of a dense layer.
#pragma once

#include "team.h"

// Rows whose inputs stay in a core's cache while panel after panel meets them.
constexpr int64_t CACHED_BYTES = 1 << 19;
// From so many rows on, threads share the work of arranging inputs. Before, each arranges all of them, and waits for no
// other.
constexpr int64_t SHARED_ROWS = 64;

// Calls `use(panel, next, first_row, rows)` for every panel and every block of `row_block` rows, each in one thread; `next`
// is the panel that the thread will want afterwards, or -1 if that is not known, or the same. A thread's first piece is that
// of its number, which `Team::prefetch_at_barriers` relies on.
template <class Use>
static inline void for_panels(Team& team, int thread, int64_t rows, int64_t row_block, int64_t panels, Use use) {
    int64_t taken = team.panels_of_piece(panels);
    int64_t pieces = (panels + taken - 1) / taken, items = (rows + row_block - 1) / row_block * pieces;
    auto take = [&] { return team.size + team.take(); };
    for (int64_t item = thread, next_item; item < items; item = next_item) {
        // The next piece is taken early, to ask for its weights, but not near the end, where the other threads may be done.
        bool takes_early = item + 2 * team.size < items;
        if (takes_early) next_item = take();
        int64_t first_row = item / pieces * row_block, first = item % pieces * taken;
        int64_t last = std::min(first + taken, panels) - 1, after = takes_early ? next_item % pieces * taken : last;
        for (int64_t panel = first; panel <= last; panel++) {
            int64_t next = panel < last ? panel + 1 : after;
            use(panel, next == panel ? -1 : next, first_row, std::min(row_block, rows - first_row));
        }
        if (!takes_early) next_item = take();
    }
}
