// Prints how many of four threads compute after each of the simulated stretches of time that the arguments name.
//
//     number_of_threads STRETCH...
//
//     rest      nobody else computes: four threads take a quarter of the time of one
//     waiting   nobody else computes, and threads wait for something else than processors
//     busy      one thread is faster than two, and two faster than four
//     half      two threads are the fastest
//     mixed     as busy, but every step has another number of rows
#include <cstdio>
#include <cstring>

#include "thread_count.h"

int main(int count, char** stretches) {
    constexpr int64_t MS = 1'000'000;
    ThreadCount threads;
    int64_t now_ns = 0, rows = 1, calls = 0;
    for (int i = 1; i < count; i++) {
        const char* stretch = stretches[i];
        bool is_busy = !strcmp(stretch, "busy") || !strcmp(stretch, "mixed"), is_half = !strcmp(stretch, "half");
        for (int64_t end_ns = now_ns + 20'000 * MS; now_ns < end_ns;) {
            int64_t size = threads.choose(4), ns = 40 * MS / size;
            if (is_busy) ns = 40 * MS * size;
            if (is_half) ns = size == 2 ? 30 * MS : 40 * MS;
            if (!strcmp(stretch, "mixed")) rows++;
            now_ns += ns + MS;
            threads.add({&calls, rows}, now_ns, ns, is_busy || is_half ? ns / 2 : 0);
        }
        printf("%s %d\n", stretch, threads.usual());
    }
}
