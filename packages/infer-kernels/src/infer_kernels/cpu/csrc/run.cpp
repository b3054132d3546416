// Runs one kernel, or the kernels of a captured step.
#include <unistd.h>

#include <memory>

#include "workers.h"

namespace {

// Those of the thread that calls. A forked process has none of its parent's threads.
Workers& workers(int threads) {
    struct Own {
        std::unique_ptr<Workers> alone{new Workers}, several{new Workers};
        pid_t process = getpid();
        ~Own() {
            if (process != getpid()) several.release();
        }
    };
    static thread_local Own own;
    if (own.process != getpid()) {
        own.several.release();
        own.several.reset(new Workers);
        own.process = getpid();
    }
    return threads > 1 ? *own.several : *own.alone;
}

}  // namespace

extern "C" {

void run_calls(const Call* calls, int64_t count, int threads) {
    if (count > 0) workers(threads).compute(calls, count, threads);
}

void run_call(Kernel kernel, const void* arguments, int threads) {
    Call call{kernel, arguments, {}};
    run_calls(&call, 1, threads);
}

// Whether the library has instructions for products of bf16 that the system does not grant, and what it computes with.
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
#elif defined(__AVX2__) && defined(__AVXVNNI__)
    return "AVX2 with VNNI";
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
