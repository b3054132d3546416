// How many threads compute a step, on a machine that has other work too.
//
// While one thread has no processor, the others may wait for the piece that it holds, so fewer may be faster. Where this process
// loses its processors, half or double the number takes turns with the usual one for a few steps of the same work, and the
// faster stays. A machine at rest tries nothing.
#pragma once

#include <algorithm>
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
        else if (all_ns_ > REMEMBERED_NS / 4 && now_ns >= next_trial_ns_ && (usual_ < most_ || is_disturbed()))
            begin(work);
    }

   private:
    static constexpr int64_t REMEMBERED_NS = 400'000'000, TRIAL_NS = 60'000'000;
    static constexpr int64_t LEAST_PAUSE_NS = 250'000'000, MOST_PAUSE_NS = 8'000'000'000;
    static constexpr int LEAST_STEPS = 3, MOST_STEPS = 64;  // of a trial

    struct Times {
        int64_t ns = 0;
        int steps = 0;
    };

    explicit ThreadCount(int most) : most_(most), usual_(most) {}

    bool is_disturbed() const { return lost_ns_ * 32 > all_ns_; }

    void begin(const Work& work) {
        // Whether fewer are better is only asked while the machine has other work; then both are asked in turn.
        is_upwards_ = usual_ == 1 || (usual_ < most_ && !(is_disturbed() && is_upwards_));
        other_ = is_upwards_ ? std::min(2 * usual_, most_) : usual_ / 2;
        work_ = work;
        usual_times_ = other_times_ = {};
        steps_ = 0;
        is_trial_ = true;
        is_others_turn_ = false;
    }

    void go_on(const Work& work, int64_t now_ns, int64_t ns) {
        Times& times = is_others_turn_ ? other_times_ : usual_times_;
        if (work == work_) {
            times.ns += ns;
            times.steps++;
        }
        is_others_turn_ = !is_others_turn_;
        bool is_enough = std::min(usual_times_.steps, other_times_.steps) >= LEAST_STEPS;
        if (is_enough && usual_times_.ns + other_times_.ns > TRIAL_NS)
            end(now_ns, other_times_.ns * usual_times_.steps < usual_times_.ns * other_times_.steps * 31 / 32);
        else if (++steps_ > MOST_STEPS)  // too few of them can be compared
            end(now_ns, false);
    }

    void end(int64_t now_ns, bool is_other_faster) {
        if (is_other_faster) usual_ = other_;
        pause_ns_ = is_other_faster ? LEAST_PAUSE_NS : std::min(2 * pause_ns_, MOST_PAUSE_NS);
        next_trial_ns_ = now_ns + pause_ns_;
        is_trial_ = false;
    }

    int most_ = 0, usual_ = 0, other_ = 0, steps_ = 0;
    bool is_trial_ = false, is_others_turn_ = false, is_upwards_ = false;
    Work work_{};
    Times usual_times_, other_times_;
    int64_t all_ns_ = 0, lost_ns_ = 0, next_trial_ns_ = 0, pause_ns_ = LEAST_PAUSE_NS;
};
