// What touches one row at a time: embeddings, norms with their residual addition, gated activations.
#include <cmath>

#include "exponentials.h"
#include "team.h"

namespace {

template <class T>
struct Norm {
    Rows rows;
    T* out;  // null: the sum alone is wanted
    int64_t out_stride;
    const T* x;
    int64_t x_stride;
    const T* weight;
    const T* residual;  // null: x alone is normalized
    int64_t residual_stride;
    T* residual_out;
    int64_t residual_out_stride;
    const T* post_weight;  // null: x is added as it is, otherwise normalized
    int64_t hidden;
    double eps;
    int64_t is_gemma;
};

// 1 / sqrt(mean of squares + eps) of a row.
template <class T>
float inverse_norm(const T* x, int64_t size, double eps) {
    Floats squares{};
    for (int64_t i = 0; i < size; i += 16) {
        Floats values = load_some(x + i, size - i);
        squares += values * values;
    }
    return 1.0f / std::sqrt(sum(squares) / (float)size + (float)eps);
}

template <class T>
Floats scaled(Floats x, float inverse, Floats weight, bool is_gemma) {
    if (is_gemma) return rounded<T>(x * inverse * (weight + 1.0f));
    return rounded<T>(rounded<T>(x * inverse) * weight);
}

template <class T>
void norm(const void* arguments, Team& team, int) {
    const auto& a = *static_cast<const Norm<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        const T* x = a.x + row * a.x_stride;
        if (a.residual) {
            const T* residual = a.residual + row * a.residual_stride;
            T* total = a.residual_out + row * a.residual_out_stride;
            float inverse = a.post_weight ? inverse_norm(x, a.hidden, a.eps) : 0.0f;
            for (int64_t i = 0; i < a.hidden; i += 16) {
                int64_t left = a.hidden - i;
                Floats added = load_some(x + i, left);
                if (a.post_weight) added = scaled<T>(added, inverse, load_some(a.post_weight + i, left), a.is_gemma);
                store_some(total + i, load_some(residual + i, left) + added, left);
            }
            x = total;
        }
        if (!a.out) return;
        T* out = a.out + row * a.out_stride;
        float inverse = inverse_norm(x, a.hidden, a.eps);
        for (int64_t i = 0; i < a.hidden; i += 16) {
            int64_t left = a.hidden - i;
            store_some(out + i, scaled<T>(load_some(x + i, left), inverse, load_some(a.weight + i, left), a.is_gemma), left);
        }
    });
}

template <class T>
struct Gated {
    Rows rows;
    T* out;
    int64_t out_stride;
    const T* gate_up;
    int64_t gate_up_stride;
    int64_t width;
    int64_t is_gelu;
};

template <class T>
void gated(const void* arguments, Team& team, int) {
    const auto& a = *static_cast<const Gated<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        const T* gate = a.gate_up + row * a.gate_up_stride;
        const T* up = gate + a.width;
        T* out = a.out + row * a.out_stride;
        for (int64_t i = 0; i < a.width; i += 16) {
            int64_t left = a.width - i;
            Floats x = load_some(gate + i, left), activated;
            if (a.is_gelu) {
                Floats inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);  // sqrt(2 / pi)
                activated = 0.5f * x * (1.0f + tanh16(inner));
            } else {
                activated = x / (1.0f + exp16(-x));
            }
            store_some(out + i, rounded<T>(activated) * load_some(up + i, left), left);
        }
    });
}

template <class T>
struct Embedding {
    Rows rows;
    T* out;
    int64_t out_stride;
    const void* ids;
    int64_t id_bytes;  // 4 or 8
    const T* weight;
    int64_t weight_stride;
    int64_t vocab;
    int64_t hidden;
    double scale;
};

template <class T>
void embedding(const void* arguments, Team& team, int) {
    const auto& a = *static_cast<const Embedding<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        int64_t id = a.id_bytes == 4 ? ((const int32_t*)a.ids)[row] : ((const int64_t*)a.ids)[row];
        T* out = a.out + row * a.out_stride;
        if (id < 0 || id >= a.vocab) {  // a step that is replayed cannot raise an error
            for (int64_t i = 0; i < a.hidden; i += 16) store_some(out + i, splat(__builtin_nanf("")), a.hidden - i);
            return;
        }
        const T* from = a.weight + id * a.weight_stride;
        if (a.scale == 1.0) {
            std::memcpy(out, from, a.hidden * sizeof(T));
            return;
        }
        for (int64_t i = 0; i < a.hidden; i += 16)
            store_some(out + i, load_some(from + i, a.hidden - i) * (float)a.scale, a.hidden - i);
    });
}

}  // namespace

extern "C" {
void norm(const void* arguments, Team& team, int thread) { norm<Element>(arguments, team, thread); }
void gated(const void* arguments, Team& team, int thread) { gated<Element>(arguments, team, thread); }
void embedding(const void* arguments, Team& team, int thread) { embedding<Element>(arguments, team, thread); }
}
