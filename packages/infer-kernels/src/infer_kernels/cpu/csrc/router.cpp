// The router of a mixture of experts: the experts of a token's largest logits, and their weights.
#include "conversions.h"
#include "exponentials.h"
#include "team.h"

namespace {

template <class T>
struct Router {
    Rows tokens;
    int32_t* ids;    // [tokens, chosen]
    float* weights;  // [tokens, chosen]
    const T* logits;
    int64_t logits_stride;
    OrNull<const T> scales;  // [experts], multiply their weights
    int64_t experts;
    int64_t chosen;    // of a token
    int64_t over_all;  // weights are shares of all experts, not of the chosen
};

// NaN is larger than anything.
bool is_larger(float a, float b) { return a > b || (a != a && b == b); }

template <class T>
float sum_of_exps(const T* values, int64_t count, float largest) {
    Floats total{};
    for (int64_t i = 0; i < count; i += 16) {
        float exps[16];
        store16(exps, exp16(load_some(values + i, count - i) - largest));
        total += load_some(exps, count - i);
    }
    return sum(total);
}

template <class T>
void router(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Router<T>*>(arguments);
    for_rows(team, a.tokens.count(), [&](int64_t token) {
        const T* logits = a.logits + token * a.logits_stride;
        int32_t* ids = a.ids + token * a.chosen;
        float* weights = a.weights + token * a.chosen;  // until the end, the largest logits so far in order
        int64_t found = 0;
        for (int64_t expert = 0; expert < a.experts; expert++) {
            float logit = to_float(logits[expert]);
            if (found == a.chosen && !is_larger(logit, weights[found - 1])) continue;
            int64_t place = found < a.chosen ? found++ : found - 1;
            for (; place > 0 && is_larger(logit, weights[place - 1]); place--) {
                weights[place] = weights[place - 1];
                ids[place] = ids[place - 1];
            }
            weights[place] = logit;
            ids[place] = (int32_t)expert;
        }
        float largest = weights[0];
        float total = a.over_all ? sum_of_exps(logits, a.experts, largest) : sum_of_exps(weights, a.chosen, largest);
        for (int64_t i = 0; i < a.chosen; i += 16)
            store_some(weights + i, exp16(load_some(weights + i, a.chosen - i) - largest) / total, a.chosen - i);
        if (a.scales)
            for (int64_t i = 0; i < a.chosen; i++) weights[i] *= to_float(a.scales[ids[i]]);
    });
}

}  // namespace

extern "C" {
void router(const void* arguments, Team& team) { router<Element>(arguments, team); }
}
