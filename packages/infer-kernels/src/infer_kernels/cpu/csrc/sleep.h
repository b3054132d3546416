// How a thread waits for a word in memory to change: it looks again and again for a while, then sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How long a thread looks. One that has lost its processor between two looks stops at once: others need it.
class Patience {
   public:
    explicit Patience(int64_t most_ns) : began_(now_ns()), last_(began_), most_ns_(most_ns) {}

    // Passes a moment; returns whether to look again.
    bool looks_again() {
        for (int i = 0; i < 8; i++) {
#if defined(__x86_64__)
            _mm_pause();
#elif defined(__aarch64__)
            asm volatile("isb");  // takes as long as _mm_pause; most cores do not wait at `yield`
#endif
        }
        int64_t time = now_ns(), passed = time - last_;
        last_ = time;
        return time - began_ < most_ns_ && passed < LOST_NS;
    }

   private:
    static constexpr int64_t LOST_NS = 100'000;  // interrupts take less

    int64_t began_, last_, most_ns_;
};

// A word that threads wait for. Who changes it wakes those that sleep, which costs nothing while none does.
class Awaited {
   public:
    explicit Awaited(uint32_t value) : word_(value) {}

    uint32_t load() const { return word_.load(std::memory_order_acquire); }

    void store(uint32_t value) {
        // A sleeper says so and then compares the word, in the other order: one of the two sees what the other did.
        word_.store(value, std::memory_order_seq_cst);
        if (has_sleepers_.load(std::memory_order_seq_cst) && has_sleepers_.exchange(false)) wake_all();
    }

    // Returns when the word is not `old`: how many nanoseconds it has slept, after looking for at most `most_ns`.
    int64_t wait_while(uint32_t old, int64_t most_ns) {
        Patience patience(most_ns);
        int64_t slept_ns = 0;
        while (load() == old) {
            if (patience.looks_again()) continue;
            int64_t from = now_ns();
            sleep_while(old);
            slept_ns += now_ns() - from;
        }
        return slept_ns;
    }

   private:
#if defined(__linux__)
    void sleep_while(uint32_t old) {
        has_sleepers_.store(true, std::memory_order_seq_cst);
        syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);  // returns at once if it is another
    }
    void wake_all() { syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
    void sleep_while(uint32_t old) {
        std::unique_lock<std::mutex> lock(mutex_);
        has_sleepers_.store(true, std::memory_order_seq_cst);
        changed_.wait(lock, [&] { return load() != old; });
    }
    void wake_all() {
        { std::lock_guard<std::mutex> lock(mutex_); }  // a thread that has found the old value sleeps by then
        changed_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
#endif

    std::atomic<uint32_t> word_;
    std::atomic<bool> has_sleepers_{false};
};
