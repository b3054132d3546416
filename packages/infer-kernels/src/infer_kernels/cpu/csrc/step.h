// What the threads of a step share: which stage is computed, by whom, and the pieces of its work.
//
// A step is a list of calls of kernels. A call is one stage, or several with a barrier between them. A stage is over when it
// has no piece left and none of its members computes one; the last that leaves it opens the next. Any thread joins a stage at
// any time and leaves it when it finds no piece, so one that has no processor, or sleeps, keeps nobody waiting unless it holds a
// piece. When it runs again, it joins what the others are at.
#pragma once

#include <mutex>
#include <thread>
#include <vector>

#include "sleep.h"

// The weights of a dense layer, panel after panel.
struct Weights {
    const uint8_t* panels;  // null: none
    int64_t count;
    int64_t panel_bytes;
};

class Team;
using Kernel = void (*)(const void* arguments, Team& team);

struct Call {
    Kernel kernel;
    const void* arguments;
    Weights upcoming;  // of the next dense layer
};

// A stage is a number: even, or odd for what comes after the last one of a step, which nobody joins.
using Stage = uint32_t;
static inline bool is_over(Stage stage) { return stage % 2 == 1; }

class Step {
   public:
    // Begins a step for at most `size` threads; returns its first stage, of which the calling thread is a member.
    Stage begin(const Call* calls, int64_t count, int size) {
        calls_ = calls;
        count_ = count;
        if (size_.load() != (uint32_t)size) size_.store((uint32_t)size);
        call_ = 0;
        return open(1, true);
    }

    // Makes the calling thread a member of what is computed; returns whether it is one, and sets the stage: that, or one that it
    // has to wait for the end of.
    bool join(Stage& stage) {
        uint64_t members = members_.fetch_add(1, std::memory_order_acq_rel);
        stage = (Stage)(members >> 32);
        if (!(members & CLOSED)) return true;
        return is_last_to_leave() && go_on(stage);  // a stage that has opened and ended meanwhile is left to this thread
    }

    // Leaves a stage without a piece left: the last of its call, or one before a barrier. The last thread to leave is a member of
    // the next stage; returns whether it is that, and sets the stage.
    bool leave(bool ends_call, Stage& stage) {
        if (ends_call_.load(std::memory_order_relaxed) != ends_call) ends_call_.store(ends_call, std::memory_order_relaxed);
        return is_last_to_leave() && go_on(stage);
    }

    // Returns when that stage is over: how many nanoseconds it has slept, after looking for `most_ns`.
    int64_t wait_for_end(Stage stage, int64_t most_ns) { return stage_.wait_while(stage, most_ns); }
    bool is_ended(Stage stage) const { return stage_.load() != stage; }
    Stage stage() const { return stage_.load(); }

    // Threads at a barrier: the arguments of their call have to stay, though the step may be over without them.
    void enter_barrier() { at_barriers_.fetch_add(1, std::memory_order_acq_rel); }
    void end_call() { at_barriers_.fetch_sub(1, std::memory_order_acq_rel); }
    void wait_for_barriers() const {
        for (Patience patience(50'000); at_barriers_.load(std::memory_order_acquire) > 0;)
            if (!patience.looks_again()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

    // Returns when that thread is one of the latest step's. The stages of steps without it do not wake it.
    void wait_until_wanted(int thread) {
        for (uint32_t size; (uint32_t)thread >= (size = size_.load());) size_.wait_while(size, 0);
    }

    // For members of a stage:

    int size() const { return (int)size_.load(); }
    const Call& call() const { return calls_[call_]; }
    Stage first_of_call() const { return first_of_call_; }

    // Hands out the numbers from 0 on.
    int64_t take(int64_t count) { return next_.fetch_add(count, std::memory_order_relaxed); }

    // Hands out the number `first`, of those below 64, once; returns whether this was it.
    bool take_first(int first) {
        uint64_t bit = uint64_t{1} << first;
        return !(firsts_.load(std::memory_order_relaxed) & bit) && !(firsts_.fetch_or(bit, std::memory_order_relaxed) & bit);
    }

    // Memory for `count` floats, until the call ends. Every thread that asks for it asks for as many.
    float* shared(size_t count) {
        std::lock_guard<std::mutex> lock(shared_mutex_);
        if (shared_.size() < count) shared_.resize(count);
        return shared_.data();
    }

   private:
    // The number of members, a bit for a stage that is closed to others, and the stage in the upper half.
    static constexpr uint64_t CLOSED = uint64_t{1} << 31, ONE_STAGE = uint64_t{1} << 32;

    bool is_last_to_leave() {
        uint64_t members = members_.fetch_sub(1, std::memory_order_acq_rel) - 1;
        // If another joins in between, it finds no piece either, and is the last in place of this one.
        return (uint32_t)members == 0 && members_.compare_exchange_strong(members, members | CLOSED, std::memory_order_acq_rel);
    }

    // Ends the closed stage; returns whether there is another, of which the calling thread is a member, and sets the stage.
    bool go_on(Stage& stage) {
        bool is_next_call = ends_call_.load(std::memory_order_relaxed);
        if (is_next_call && ++call_ == count_) {
            stage = (Stage)(members_.fetch_add(ONE_STAGE, std::memory_order_acq_rel) >> 32) + 1;
            stage_.store(stage);
            return false;
        }
        stage = open(2, is_next_call);
        return true;
    }

    // Others that have just found the stage closed are still counted, and are no members when they notice.
    Stage open(uint32_t after, bool is_next_call) {
        next_.store(0, std::memory_order_relaxed);
        firsts_.store(0, std::memory_order_relaxed);
        Stage stage = (Stage)(members_.load(std::memory_order_relaxed) >> 32) + after;
        if (is_next_call) first_of_call_ = stage;
        members_.fetch_add(after * ONE_STAGE - CLOSED + 1, std::memory_order_acq_rel);
        stage_.store(stage);
        return stage;
    }

    const Call* calls_ = nullptr;
    int64_t count_ = 0, call_ = 0;
    Stage first_of_call_ = 0;
    Awaited size_{1};
    std::atomic<bool> ends_call_{false};
    std::atomic<int> at_barriers_{0};
    std::mutex shared_mutex_;
    std::vector<float> shared_;
    alignas(64) std::atomic<int64_t> next_{0};
    std::atomic<uint64_t> firsts_{0};
    alignas(64) std::atomic<uint64_t> members_{ONE_STAGE | CLOSED};
    alignas(64) Awaited stage_{1};
};
