// What touches one row at a time: embeddings, norms with their residual addition or a gate, gated activations, gates.
#include <cmath>

#include "conversions.h"
#include "exponentials.h"
#include "team.h"

namespace {

template <class T>
struct Norm {
    Rows rows;
    OrNull<T> out;  // [rows, heads, hidden]; null: the sum alone is wanted
    int64_t out_stride;
    int64_t out_stride_head;
    const T* x;
    int64_t x_stride;
    int64_t x_stride_head;
    OrNull<const T> weight;
    OrNull<const T> residual;  // null: x alone is normalized
    int64_t residual_stride;
    int64_t residual_stride_head;
    T* residual_out;
    int64_t residual_out_stride;
    int64_t residual_out_stride_head;
    OrNull<const T> post_weight;  // null: x is added as it is, otherwise normalized
    OrNull<const T> scale;        // multiplies the sum
    int64_t heads;
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
        squares = add_product(squares, values, values);
    }
    return 1.0f / std::sqrt(sum(squares) / (float)size + (float)eps);
}

template <class T>
Floats scaled(Floats x, float inverse, Floats weight, bool is_gemma) {
    if (is_gemma) return rounded<T>(x * inverse * (weight + 1.0f));
    return rounded<T>(rounded<T>(x * inverse) * weight);
}

template <class T>
void norm_head(const Norm<T>& a, int64_t row, int64_t head) {
    const T* x = a.x + row * a.x_stride + head * a.x_stride_head;
    if (a.residual) {
        const T* residual = a.residual + row * a.residual_stride + head * a.residual_stride_head;
        T* total = a.residual_out + row * a.residual_out_stride + head * a.residual_out_stride_head;
        float inverse = a.post_weight ? inverse_norm(x, a.hidden, a.eps) : 0.0f;
        const Floats scale = splat(a.scale ? to_float(*a.scale) : 1.0f);
        for (int64_t i = 0; i < a.hidden; i += 16) {
            int64_t left = a.hidden - i;
            Floats added = load_some(x + i, left);
            if (a.post_weight) added = scaled<T>(added, inverse, load_some(a.post_weight + i, left), a.is_gemma);
            Floats sum = load_some(residual + i, left) + added;
            store_some(total + i, a.scale ? rounded<T>(sum) * scale : sum, left);
        }
        x = total;
    }
    if (!a.out) return;
    T* out = a.out + row * a.out_stride + head * a.out_stride_head;
    float inverse = inverse_norm(x, a.hidden, a.eps);
    for (int64_t i = 0; i < a.hidden; i += 16) {
        int64_t left = a.hidden - i;
        store_some(out + i, scaled<T>(load_some(x + i, left), inverse, load_some(a.weight + i, left), a.is_gemma), left);
    }
}

template <class T>
void norm(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Norm<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        for (int64_t head = 0; head < a.heads; head++) norm_head(a, row, head);
    });
}

template <class T>
struct Gated {
    Rows rows;
    T* out;
    int64_t out_stride;
    const T* gates;
    int64_t gates_stride;
    const T* ups;
    int64_t ups_stride;
    int64_t width;
    int64_t is_gelu;
};

template <class T>
void gated(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Gated<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        const T* gate = a.gates + row * a.gates_stride;
        const T* up = a.ups + row * a.ups_stride;
        T* out = a.out + row * a.out_stride;
        for (int64_t i = 0; i < a.width; i += 16) {
            int64_t left = a.width - i;
            Floats x = load_some(gate + i, left);
            Floats activated = a.is_gelu ? gelu_tanh(x) : x / (1.0f + exp16(-x));
            store_some(out + i, rounded<T>(activated) * load_some(up + i, left), left);
        }
    });
}

template <class T>
struct GatedNorm {
    Rows rows;
    T* out;  // [tokens, heads, head_dim]
    const T* x;  // [tokens, heads, head_dim]
    int64_t x_stride_token;
    int64_t x_stride_head;
    const T* gate;  // [tokens, heads * head_dim]
    int64_t gate_stride;
    const T* weight;  // [head_dim]
    int64_t heads;
    int64_t head_dim;
    double eps;
};

template <class T>
void gated_norm(const void* arguments, Team& team) {
    const auto& a = *static_cast<const GatedNorm<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        for (int64_t head = 0; head < a.heads; head++) {
            const T* x = a.x + row * a.x_stride_token + head * a.x_stride_head;
            const T* gate = a.gate + row * a.gate_stride + head * a.head_dim;
            T* out = a.out + (row * a.heads + head) * a.head_dim;
            float inverse = inverse_norm(x, a.head_dim, a.eps);
            for (int64_t i = 0; i < a.head_dim; i += 16) {
                int64_t left = a.head_dim - i;
                Floats normed = scaled<T>(load_some(x + i, left), inverse, load_some(a.weight + i, left), false);
                Floats z = load_some(gate + i, left);
                store_some(out + i, normed * (z / (1.0f + exp16(-z))), left);
            }
        }
    });
}

template <class T>
struct NormOfGated {
    Rows rows;
    T* out;  // [tokens, groups * size]
    const T* x;
    int64_t x_stride;
    const T* gate;
    int64_t gate_stride;
    const T* weight;  // [groups * size]
    int64_t groups;
    int64_t size;
    double eps;
};

template <class T>
void norm_of_gated(const void* arguments, Team& team) {
    const auto& a = *static_cast<const NormOfGated<T>*>(arguments);
    static thread_local std::vector<float> gated;
    gated.resize((a.size + 15) / 16 * 16);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        for (int64_t group = 0; group < a.groups; group++) {
            const T* x = a.x + row * a.x_stride + group * a.size;
            const T* gate = a.gate + row * a.gate_stride + group * a.size;
            const T* weight = a.weight + group * a.size;
            T* out = a.out + (row * a.groups + group) * a.size;
            for (int64_t i = 0; i < a.size; i += 16) {
                Floats z = load_some(gate + i, a.size - i);
                store_vector(gated.data() + i, load_some(x + i, a.size - i) * (z / (1.0f + exp16(-z))));
            }
            float inverse = inverse_norm(gated.data(), a.size, a.eps);
            for (int64_t i = 0; i < a.size; i += 16) {
                int64_t left = a.size - i;
                store_some(out + i, scaled<T>(load16(gated.data() + i), inverse, load_some(weight + i, left), false), left);
            }
        }
    });
}

template <class T>
struct SigmoidGate {
    Rows rows;
    T* out;  // [tokens, width]
    const T* x;
    int64_t x_stride;
    const T* gate;  // [tokens, width], or one of each row
    int64_t gate_stride;
    OrNull<const T> addend;
    int64_t addend_stride;
    int64_t width;
    int64_t is_one_of_row;
};

template <class T>
void sigmoid_gate(const void* arguments, Team& team) {
    const auto& a = *static_cast<const SigmoidGate<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        const T* x = a.x + row * a.x_stride;
        const T* gate = a.gate + row * a.gate_stride;
        const T* addend = a.addend + row * a.addend_stride;
        T* out = a.out + row * a.width;
        const Floats of_row = splat(a.is_one_of_row ? to_float(*gate) : 0.0f);
        for (int64_t i = 0; i < a.width; i += 16) {
            int64_t left = a.width - i;
            Floats z = a.is_one_of_row ? of_row : load_some(gate + i, left);
            Floats gated = load_some(x + i, left) * rounded<T>(1.0f / (1.0f + exp16(-z)));
            if (a.addend) gated = load_some(addend + i, left) + rounded<T>(gated);
            store_some(out + i, gated, left);
        }
    });
}

template <class T>
struct Embedding {
    Rows rows;
    T* out;
    int64_t out_stride;
    const void* ids;
    int64_t ids_bytes;  // 4 or 8
    const T* weight;
    int64_t weight_stride;
    int64_t vocab;
    int64_t hidden;
    double scale;
};

template <class T>
void embedding(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Embedding<T>*>(arguments);
    for_rows(team, a.rows.count(), [&](int64_t row) {
        int64_t id = a.ids_bytes == 4 ? ((const int32_t*)a.ids)[row] : ((const int64_t*)a.ids)[row];
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
void norm(const void* arguments, Team& team) { norm<Element>(arguments, team); }
void gated(const void* arguments, Team& team) { gated<Element>(arguments, team); }
void gated_norm(const void* arguments, Team& team) { gated_norm<Element>(arguments, team); }
void norm_of_gated(const void* arguments, Team& team) { norm_of_gated<Element>(arguments, team); }
void sigmoid_gate(const void* arguments, Team& team) { sigmoid_gate<Element>(arguments, team); }
void embedding(const void* arguments, Team& team) { embedding<Element>(arguments, team); }
}
