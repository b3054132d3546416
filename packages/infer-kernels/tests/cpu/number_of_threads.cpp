// Prints how many of four threads computed most of the second half of each of the simulated stretches that the arguments name,
// and for how many hundredths of that half.
//
//     number_of_threads STRETCH...
//
//     rest      nobody else computes: four threads take a quarter of the time of one
//     busy      one thread is faster than two, and two faster than four
//     half      two threads are the fastest
//     mixed     as busy, but every step has another number of rows
//     noisy     one thread takes four fifths of the time of two, but one step of five takes six times as long as the others
//     lively    as noisy, but threads that have slept get their processors first: the first step of more of them takes a third
//     like      one thread and more take the same time, as noisy
#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "thread_count.h"

static bool is_one_of(const char* stretch, std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (!strcmp(stretch, name)) return true;
    return false;
}

int main(int count, char** stretches) {
    constexpr int64_t MS = 1'000'000;
    ThreadCount threads;
    std::mt19937 random(1);
    int64_t now_ns = 0, rows = 1, calls = 0;
    for (int i = 1; i < count; i++) {
        const char* stretch = stretches[i];
        bool is_noisy = is_one_of(stretch, {"noisy", "lively", "like"});
        int64_t middle_ns = now_ns + (is_noisy ? 100'000 : 30'000) * MS, end_ns = 2 * middle_ns - now_ns;
        std::map<int, int64_t> times;
        for (int before = 4; now_ns < end_ns;) {
            int64_t size = threads.choose(4), ns = 40 * MS / size;
            if (is_one_of(stretch, {"busy", "mixed"})) ns = 40 * MS * size;
            if (is_one_of(stretch, {"half"})) ns = size == 2 ? 30 * MS : 40 * MS;
            if (is_noisy) {
                ns = (size == 1 ? 40 : size == 2 ? 50 : 80) * MS;
                if (is_one_of(stretch, {"like"})) ns = 40 * MS;
                ns = ns * (random() % 5 ? 1 : 6) / 2;
            }
            if (is_one_of(stretch, {"lively"}) && size > before) ns /= 3;
            before = (int)size;
            if (is_one_of(stretch, {"mixed"})) rows++;
            now_ns += ns + MS;
            if (now_ns > middle_ns) times[(int)size] += ns;
            threads.add({&calls, rows}, now_ns, ns, is_one_of(stretch, {"rest"}) ? 0 : ns / 2);
        }
        int most = 0;
        int64_t all_ns = 0;
        for (auto [size, ns] : times) {
            all_ns += ns;
            if (most == 0 || ns > times[most]) most = size;
        }
        printf("%s %d %d\n", stretch, most, (int)(100 * times[most] / all_ns));
    }
}
