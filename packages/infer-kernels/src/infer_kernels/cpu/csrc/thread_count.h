// How many threads compute a step, on a machine that has other work too.
//
// While one thread has no processor, the others may wait for the piece that it holds, so fewer may be faster. Where this process
// loses its processors, half or double the number is tried beside the usual one, for steps of the same work:
//
//     usual  other other  usual usual  other other  usual ...      blocks, of which two neighbours are a pair
//
// A machine that others use gives a thread its processor at once when it has slept, and lets it wait when it has not. So a block
// is long enough to become usual, and its first step is not counted. Pairs are added until their ratios, beside how far these
// scatter, say which number is faster (the two sides of a t-test, the nearer one for the usual number, which costs nothing to
// keep). A machine at rest tries nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>

#include "sleep.h"

// What this thread has computed for. Where the system does not say, it is never without a processor.
static inline int64_t cpu_ns() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1'000'000'000 + time.tv_nsec;
#else
    return now_ns();
#endif
}

class ThreadCount {
   public:
    struct Work {
        const void* calls;
        int64_t rows;
        bool operator==(const Work& other) const { return calls == other.calls && rows == other.rows; }
    };

    ThreadCount() = default;

    // Returns how many of `most` compute the next step.
    int choose(int most) {
        if (most != most_) *this = ThreadCount(most);
        return is_trial_ && is_others_turn_ ? other_ : usual_;
    }

    // Returns how many compute unless another number is tried.
    int usual() const { return usual_; }

    // Says of the step that has ended what it computed, how long it took, and for how much of that the calling thread was
    // awake without a processor.
    void add(const Work& work, int64_t now_ns, int64_t ns, int64_t lost_ns) {
        all_ns_ += ns;
        lost_ns_ += std::max<int64_t>(0, lost_ns);
        if (all_ns_ > REMEMBERED_NS) {  // what was long ago counts less
            all_ns_ /= 2;
            lost_ns_ /= 2;
        }
        if (is_trial_)
            go_on(work, now_ns, ns);
        else if (all_ns_ > REMEMBERED_NS / 4 && (usual_ < most_ || is_disturbed()) && has_paused(now_ns))
            begin(work);
    }

   private:
    static constexpr int64_t REMEMBERED_NS = 400'000'000, BLOCK_NS = 25'000'000;
    static constexpr int64_t LEAST_PAUSE_NS = 250'000'000, MOST_PAUSE_NS = 8'000'000'000, MOST_BUSY_PAUSE_NS = 16'000'000'000;
    static constexpr int LEAST_STEPS = 3;  // of a block that are counted
    static constexpr int LEAST_PAIRS = 4, MOST_PAIRS = 32, MOST_UNLIKE_STEPS = 64;
    static constexpr double OTHERS_BOUND = 2, USUAL_BOUND = 1;  // standard errors
    static constexpr double LEAST_GAIN = 1.0 / 32, CLEAR_LOSS = 0.4;

    // The steps of a block.
    struct Times {
        int64_t ns = 0, steps = 0;
        double mean() const { return double(ns) / double(steps); }
    };

    // Logarithms of the ratios of pairs: of the other number's mean step over the usual one's.
    struct Ratios {
        double sum = 0, squares = 0;
        int count = 0;

        void add(double ratio) {
            sum += ratio;
            squares += ratio * ratio;
            count++;
        }
        double mean() const { return sum / count; }
        double error() const { return std::sqrt(std::max(1e-6, squares / count - mean() * mean()) / (count - 1)); }
    };

    explicit ThreadCount(int most) : most_(most), usual_(most) {}

    bool is_disturbed() const { return lost_ns_ * 32 > all_ns_; }

    bool has_paused(int64_t now_ns) const {
        return now_ns - ended_ns_ >= std::min(pause_ns_, is_disturbed() ? MOST_BUSY_PAUSE_NS : MOST_PAUSE_NS);
    }

    void begin(const Work& work) {
        // Whether fewer are better is only asked while the machine has other work; then both are asked in turn.
        is_upwards_ = usual_ == 1 || (usual_ < most_ && !(is_disturbed() && is_upwards_));
        other_ = is_upwards_ ? std::min(2 * usual_, most_) : usual_ / 2;
        work_ = work;
        block_ = unlike_steps_ = 0;
        ratios_ = {};
        is_trial_ = true;
        begin_block();
    }

    void begin_block() {
        is_others_turn_ = (block_ + 1) / 2 % 2 == 1;
        times_ = {};
        is_first_step_ = true;
    }

    void go_on(const Work& work, int64_t now_ns, int64_t ns) {
        if (!(work == work_)) {
            if (++unlike_steps_ > MOST_UNLIKE_STEPS) end(now_ns, false);  // too few can be compared
            return;
        }
        if (is_first_step_) {
            is_first_step_ = false;
            return;
        }
        times_.ns += ns;
        if (++times_.steps < LEAST_STEPS || times_.ns < BLOCK_NS) return;
        if (block_++ % 2 == 1) {
            double ratio = std::log(times_.mean() / before_.mean());
            ratios_.add(is_others_turn_ ? ratio : -ratio);
            if (is_decided(now_ns)) return;
        }
        before_ = times_;
        begin_block();
    }

    bool is_decided(int64_t now_ns) {
        double mean = ratios_.mean(), error = ratios_.error();
        bool is_other = ratios_.count >= LEAST_PAIRS && mean < -OTHERS_BOUND * error && mean < -LEAST_GAIN;
        bool is_usual = ratios_.count >= LEAST_PAIRS ? mean >= USUAL_BOUND * error : ratios_.count > 1 && mean >= CLEAR_LOSS;
        if (!is_other && !is_usual && ratios_.count < MOST_PAIRS) return false;
        end(now_ns, is_other);
        return true;
    }

    void end(int64_t now_ns, bool is_other_faster) {
        if (is_other_faster) usual_ = other_;
        pause_ns_ = is_other_faster ? LEAST_PAUSE_NS : std::min(4 * pause_ns_, MOST_BUSY_PAUSE_NS);
        ended_ns_ = now_ns;
        is_trial_ = is_others_turn_ = false;
    }

    int most_ = 0, usual_ = 0, other_ = 0, block_ = 0, unlike_steps_ = 0;
    bool is_trial_ = false, is_others_turn_ = false, is_upwards_ = false, is_first_step_ = false;
    Work work_{};
    Times times_, before_;
    Ratios ratios_;
    int64_t all_ns_ = 0, lost_ns_ = 0, ended_ns_ = 0, pause_ns_ = LEAST_PAUSE_NS;
};
