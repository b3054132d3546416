// The threads that compute with the one that asks: started when they are first wanted, and kept for it until it ends.
#pragma once

#include <system_error>
#include <thread>
#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#endif

#include "amx.h"
#include "team.h"
#include "thread_count.h"

class Workers {
   public:
    Workers() = default;
    Workers(const Workers&) = delete;

    ~Workers() {
        is_stopping_.store(true, std::memory_order_release);
        Call nothing{[](const void*, Team&) {}, nullptr, {}};
        run(&nothing, 1, (int)threads_.size() + 1);  // wakes them
        for (auto& thread : threads_) thread.join();
    }

    // Computes a step with at most `size` threads, this one among them.
    void compute(const Call* calls, int64_t count, int size) {
        while ((int)threads_.size() < std::min(size, most_) - 1)
            if (!start()) most_ = (int)threads_.size() + 1;  // the system starts no more
        size = std::min(size, most_);
        if (size == 1) return run(calls, count, size);
        if (count == 1) return run(calls, count, thread_count_.choose(size));  // as many as steps have shown
        int64_t began_ns = now_ns(), cpu_began_ns = cpu_ns(), slept_ns = team_.slept_ns;
        run(calls, count, thread_count_.choose(size));
        int64_t ended_ns = now_ns(), ns = ended_ns - began_ns;
        int64_t lost_ns = ns - (cpu_ns() - cpu_began_ns) - (team_.slept_ns - slept_ns);
        thread_count_.add({calls, static_cast<const Rows*>(calls->arguments)->count()}, ended_ns, ns, lost_ns);
    }

   private:
    void run(const Call* calls, int64_t count, int size) {
        Stage stage = team_.compute(step_.begin(calls, count, size));
        while (!is_over(stage)) {
            team_.wait_for_end(stage, Team::LOOK_NS);
            if (step_.join(stage)) stage = team_.compute(stage);
        }
        step_.wait_for_barriers();
        amx::release();
    }

    bool start() {
#if !defined(_WIN32)
        sigset_t blocked, before;  // signals are for the threads of others, but for those of what a thread does itself
        sigfillset(&blocked);
        for (int own : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) sigdelset(&blocked, own);
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
#endif
        bool has_started = true;
        try {
            threads_.emplace_back([this, number = (int)threads_.size() + 1] { work(number); });
        } catch (const std::system_error&) {
            has_started = false;
        }
#if !defined(_WIN32)
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
        return has_started;
    }

    void work(int number) {
#if defined(__linux__)
        pthread_setname_np(pthread_self(), "infer-kernels");
#elif defined(__APPLE__)
        pthread_setname_np("infer-kernels");
#endif
        Team team(step_, number);
        for (;;) {
            step_.wait_until_wanted(number);
            Stage stage = step_.stage();
            if (is_stopping_.load(std::memory_order_acquire)) return;  // known to whoever sees the last stage, which nothing ends
            if (step_.join(stage)) stage = team.compute(stage);
            if (is_over(stage)) amx::release();
            team.wait_for_end(stage, Team::LOOK_NS);
        }
    }

    Step step_;
    Team team_{step_, 0};
    std::vector<std::thread> threads_;
    int most_ = INT32_MAX;
    ThreadCount thread_count_;
    std::atomic<bool> is_stopping_{false};
};
