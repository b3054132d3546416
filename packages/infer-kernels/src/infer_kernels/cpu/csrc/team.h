// A step as one of its threads sees it: a barrier, and work that is handed out piece by piece.
//
// Whatever a stage writes, the thread writes that took the piece it belongs to, by `take` or `for_pieces`: a thread that comes to
// a stage late finds nothing to take, and passes its barriers, until it is where the others are.
#pragma once

#include <algorithm>

#include "step.h"

class Team {
   public:
    Team(Step& step, int number) : step_(step), number_(number) {}

    int size = 1;          // threads, at most
    int64_t slept_ns = 0;  // while this thread waited

    // Hands out the numbers from 0 on, each to one thread, since the last barrier.
    int64_t take(int64_t count = 1) { return is_late() ? NOTHING : step_.take(count); }

    // Calls `use(piece, after)` for the pieces that this thread takes. Each begins with the piece of its own number, which it has
    // prefetched, unless it comes so late that another one took it. `after` is the one that it will take next, or -1 if that is
    // not known.
    template <class Use>
    void for_pieces(int64_t pieces, Use use) {
        if (is_late()) return;
        int firsts = size <= MOST_FIRSTS ? size : 0;
        auto next = [&] { return firsts + step_.take(1); };
        int64_t after;
        for (int64_t piece = number_ < firsts && step_.take_first(number_) ? number_ : next(); piece < pieces; piece = after) {
            // The next one is taken early, to ask for its weights, but not near the end, where the other threads may be done.
            bool takes_early = piece + 2 * size < pieces;
            if (takes_early) after = next();
            use(piece, takes_early ? after : -1);
            if (!takes_early) after = next();
        }
        for (int first = 0; first < std::min<int64_t>(firsts, pieces); first++)
            if (step_.take_first(first)) use(first, -1);
    }

    // How many of a layer's panels a thread takes at a time.
    int64_t panels_of_piece(int64_t panels) const { return std::max<int64_t>(1, panels / (size * 8)); }

    // Waits for all work since the last barrier.
    void barrier() {
        if (!is_late()) {
            if (!was_at_barrier_) step_.enter_barrier();
            was_at_barrier_ = true;
            if (!step_.leave(false, joined_)) {
                do wait_for_end(joined_, LOOK_NS);
                while (!step_.join(joined_) && !is_over(joined_));
            }
        }
        at_ += 2;
    }

    // Memory for `count` floats that all threads see, until the call ends. All ask for as many.
    float* shared(size_t count) { return step_.shared(count); }

    // As a member of a stage, computes with the others until this thread finds nothing to do. Returns the stage that it has to
    // wait for the end of, or that the step is over with.
    Stage compute(Stage joined) {
        for (;;) {
            size = step_.size();
            joined_ = joined;
            at_ = step_.first_of_call();
            const Call& call = step_.call();
            prefetch_when_waiting(call.upcoming);
            call.kernel(call.arguments, *this);
            if (was_at_barrier_) step_.end_call();
            was_at_barrier_ = false;
            joined = joined_;
            if (is_over(joined)) return joined;  // while this thread waited at a barrier
            if (!is_late() && !step_.leave(true, joined)) return joined;
        }
    }

    // Passes the time until that stage is over.
    void wait_for_end(Stage stage, int64_t most_ns) {
        for (; prefetched_.from < prefetched_.end && !step_.is_ended(stage); prefetched_.from += LINE)
            __builtin_prefetch(prefetched_.from, 0, 2);
        slept_ns += step_.wait_for_end(stage, most_ns);
    }

    // How long a thread looks before it sleeps. Between steps others need the processors, and no step waits for one to wake.
    static constexpr int64_t LOOK_NS = 50'000;

   private:
    static constexpr int64_t LINE = 64, MOST_PREFETCHED_BYTES = 1 << 19;  // of a core's own cache
    static constexpr int64_t NOTHING = INT64_MAX / 2;
    static constexpr int MOST_FIRSTS = 64;

    // Whether others have computed the stage that this thread is at in its call, and maybe the whole call.
    bool is_late() const { return at_ != joined_; }

    // From now on this thread prefetches, while it waits, its first piece of the weights that it will read next.
    void prefetch_when_waiting(const Weights& weights) {
        if (weights.panels == prefetched_.panels) return;
        int64_t bytes = panels_of_piece(weights.count) * weights.panel_bytes;
        const uint8_t* from = weights.panels + number_ * bytes;
        prefetched_ = {weights.panels, from, from + std::min(bytes, MOST_PREFETCHED_BYTES)};
    }

    struct Prefetched {
        const uint8_t *panels, *from, *end;
    };

    Step& step_;
    const int number_;
    Stage joined_ = 0, at_ = 0;
    bool was_at_barrier_ = false;
    Prefetched prefetched_{};
};

// The arguments of a kernel are words of eight bytes: pointers, integers and doubles. Python reads the fields of their struct
// from its declaration (see `arguments.py`), where names have a meaning:
//
//     x                 a tensor, by its address; OrNull: it may be left out
//     x_stride...       its strides, from the first dimension on
//     x_bytes           bytes of an element
//     x_row_bytes       bytes from a row to the next
//
// The number of rows comes first: `*at` where that is given, because a captured step has other rows at each replay.
template <class T>
using OrNull = T*;

struct Rows {
    int64_t fixed;
    const int64_t* at;
    int64_t count() const { return at ? *at : fixed; }
};

// Calls `use(row)` for every row, a share of the rows in each thread.
template <class Use>
static inline void for_rows(Team& team, int64_t rows, Use use) {
    int64_t taken = std::max<int64_t>(1, rows / (team.size * 4));
    for (int64_t first; (first = team.take(taken)) < rows;)
        for (int64_t row = first; row < std::min(first + taken, rows); row++) use(row);
}
