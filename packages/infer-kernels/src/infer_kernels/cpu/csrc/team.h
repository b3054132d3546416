// The threads that compute a kernel together: a barrier, and work that is handed out piece by piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>
#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The weights of a dense layer, panel after panel.
struct Weights {
    const uint8_t* panels;  // null: none
    int64_t count;
    int64_t panel_bytes;
};

class Team {
   public:
    explicit Team(std::vector<float>& shared) : shared(shared) {}

    int size = 1;  // set before any other use
    std::vector<float>& shared;  // memory that all threads see; `reserve` makes it larger

    // Hands out the numbers from 0 on, each to one thread, since the last barrier.
    int64_t take(int64_t count = 1) { return next_.fetch_add(count, std::memory_order_relaxed); }

    // How many of a layer's panels a thread takes at a time.
    int64_t panels_of_piece(int64_t panels) const { return std::max<int64_t>(1, panels / (size * 8)); }

    // From now on this thread prefetches, while it waits at barriers, its first piece of the weights that it will read next.
    void prefetch_at_barriers(const Weights& weights, int thread) {
        if (weights.panels == prefetched_.panels) return;
        int64_t bytes = panels_of_piece(weights.count) * weights.panel_bytes;
        const uint8_t* from = weights.panels + thread * bytes;
        prefetched_ = {weights.panels, from, from + std::min(bytes, MOST_PREFETCHED_BYTES)};
    }

    // Waits for all threads. The one that comes last resets what `take` hands out.
    void barrier() {
        if (size == 1) {
            next_.store(0, std::memory_order_relaxed);
            return;
        }
        unsigned round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
            if (prefetched_.from < prefetched_.end) {
                __builtin_prefetch(prefetched_.from, 0, 2);
                prefetched_.from += LINE;
            } else if (spins < 4096) {
#if defined(__x86_64__)
                _mm_pause();
#endif
            } else {
                sched_yield();  // a thread that is waited for may need this processor
            }
        }
    }

    // Makes `shared` hold `count` floats. All threads call it with the same number.
    void reserve(size_t count, int thread) {
        if (shared.size() >= count) return;
        barrier();
        if (thread == 0) shared.resize(count);
        barrier();
    }

   private:
    static constexpr int64_t LINE = 64;
    static constexpr int64_t MOST_PREFETCHED_BYTES = 1 << 19;  // of a core's own cache

    struct Prefetched {
        const uint8_t *panels, *from, *end;
    };

    static inline thread_local Prefetched prefetched_{};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> round_{0};
};

// The arguments of a kernel are words of eight bytes: pointers, integers and doubles, in the order of a struct. The
// number of rows comes first: `*rows_at` where that is given, because a captured step has other rows at each replay.
struct Rows {
    int64_t fixed;
    const int64_t* at;
    int64_t count() const { return at ? *at : fixed; }
};

using Kernel = void (*)(const void* arguments, Team& team, int thread);

// Calls `use(row)` for every row, a share of the rows in each thread.
template <class Use>
static inline void for_rows(Team& team, int64_t rows, Use use) {
    int64_t taken = std::max<int64_t>(1, rows / (team.size * 4));
    for (int64_t first; (first = team.take(taken)) < rows;)
        for (int64_t row = first; row < std::min(first + taken, rows); row++) use(row);
}
