// Threads that come and go while they compute steps of random kernels: counts what was computed twice, left out, or began before
// all pieces of the stages before it were computed, and threads that are in a call when its step is over.
//
//     team_of_threads STEPS THREADS ONE_OF      about one piece of ONE_OF is computed after a pause; 0: none
#include <cstdio>
#include <cstdlib>
#include <random>

#include "workers.h"

namespace {

struct Job {
    Rows rows{1, nullptr};
    int before;  // pieces of all stages before this call
    int pieces;  // of each stage
    int stages;
    bool begins_with_own;
    std::atomic<int> computed{0};
};

std::atomic<int> failures{0}, total{0}, inside{0};
int one_of = 0;

void compute_piece(Job& job, int stage) {
    int expected = job.before + stage * job.pieces, seen = total.load();
    if (seen < expected || seen >= expected + job.pieces) failures++;
    static thread_local std::minstd_rand random{std::random_device{}()};
    if (one_of && random() % one_of == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    job.computed++;
    total++;
}

void kernel(const void* arguments, Team& team) {
    Job& job = *(Job*)arguments;
    inside++;
    for (int stage = 0; stage < job.stages; stage++) {
        if (stage) team.barrier();
        if (job.begins_with_own)
            team.for_pieces(job.pieces, [&](int64_t, int64_t) { compute_piece(job, stage); });
        else
            while (team.take() < job.pieces) compute_piece(job, stage);
    }
    inside--;
}

}  // namespace

int main(int, char** arguments) {
    int steps = atoi(arguments[1]), threads = atoi(arguments[2]);
    one_of = atoi(arguments[3]);
    std::minstd_rand random{7};
    Workers workers;
    for (int step = 0; step < steps; step++) {
        std::vector<Job> jobs(1 + random() % 20);
        std::vector<Call> calls;
        total = 0;
        int before = 0;
        for (Job& job : jobs) {
            job.before = before;
            job.pieces = (int)(random() % 12);
            job.stages = 1 + (int)(random() % 3);
            job.begins_with_own = random() % 2;
            before += job.pieces * job.stages;
            calls.push_back({kernel, &job, {}});
        }
        workers.compute(calls.data(), (int64_t)calls.size(), 1 + (int)(random() % threads));
        if (inside != 0) failures++;  // its arguments go with the step
        if (total != before) failures++;
        for (Job& job : jobs)
            if (job.computed != job.pieces * job.stages) failures++;
        if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // until they sleep
    }
    printf("%d failures in %d steps\n", failures.load(), steps);
}
