// Runs one kernel, or the kernels of a captured step, in one parallel region.
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "amx.h"
#include "team.h"

namespace {

struct Call {
    Kernel kernel;
    const void* arguments;
    Weights upcoming;  // of the next dense layer
};

thread_local std::vector<float> shared;  // of the thread that runs a step, seen by its team

}  // namespace

extern "C" {

void run_calls(const Call* calls, int64_t count, int threads) {
    Team team(shared);
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int thread = omp_get_thread_num();
#pragma omp single
        team.size = omp_get_num_threads();  // fewer than asked for under OMP_THREAD_LIMIT
#else
    {
        int thread = 0;
#endif
        for (int64_t i = 0; i < count; i++) {
            team.prefetch_at_barriers(calls[i].upcoming, thread);
            calls[i].kernel(calls[i].arguments, team, thread);
            if (i + 1 < count) team.barrier();
        }
        amx::release();
    }
}

void run_call(Kernel kernel, const void* arguments, int threads) {
    Call call{kernel, arguments, {}};
    run_calls(&call, 1, threads);
}

// Whether the library was compiled with threads, what it multiplies bf16 numbers with, and whether it has instructions for
// that which the system does not grant.
int has_threads() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}

int is_amx_refused() {
#if HAS_AMX_BF16 || HAS_AMX_INT8
    return !amx::is_granted();
#else
    return 0;
#endif
}

const char* instruction_set() {
#if defined(INFER_EMULATED_AMX)
    if (amx::is_granted()) return "emulated AMX";
#elif HAS_AMX_BF16
    if (amx::is_granted()) return "AVX512 with bf16 and AMX";
#endif
#if defined(__AVX512BF16__)
    return "AVX512 with bf16";
#elif defined(__AVX512F__)
    return "AVX512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__aarch64__)
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
    return "NEON with i8mm and bf16";
#elif defined(__ARM_FEATURE_MATMUL_INT8)
    return "NEON with i8mm";
#elif defined(__ARM_FEATURE_DOTPROD)
    return "NEON with dot products";
#else
    return "NEON";
#endif
#else
    return "this CPU";
#endif
}
}
