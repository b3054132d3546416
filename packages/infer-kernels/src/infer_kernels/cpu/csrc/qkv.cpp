// From packed qkv to prepared queries and a written cache: QK-norm, rotation, store.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "conversions.h"
#include "team.h"

namespace {

constexpr int MOST_HEAD_DIM = 1024;

// T: of heads. K: of the cache, T or int8_t.
template <class T, class K>
struct Prepare {
    Rows rows;
    OrNull<T> q;  // [tokens, q_heads, head_dim]; null: they are left alone
    int64_t q_stride_token;
    int64_t q_stride_head;
    const T* qkv;  // [tokens, q_heads + 2 * kv_heads, head_dim]
    int64_t qkv_stride_token;
    int64_t qkv_stride_head;
    OrNull<K> keys;  // [blocks, kv_heads, block_size, head_dim], or codes [..., head_dim + 4]
    int64_t keys_stride_block;
    int64_t keys_stride_head;
    int64_t keys_stride_token;
    OrNull<K> values;
    int64_t values_stride_block;
    int64_t values_stride_head;
    int64_t values_stride_token;
    OrNull<const void> slots;  // [tokens]; negative: not stored
    int64_t slots_bytes;
    int64_t block_size;
    int64_t q_heads;
    int64_t kv_heads;
    int64_t head_dim;
    OrNull<const void> positions;  // [tokens]; null: no rotation
    int64_t positions_bytes;
    OrNull<const float> cos_sin;  // [positions, rotary_dim]: cosines, then sines
    int64_t cos_sin_stride;
    int64_t rotary_dim;  // elements of a head that are rotated, the first ones
    OrNull<const T> q_weight;  // [head_dim]; null: no norm
    OrNull<const T> k_weight;
    double eps;
    int64_t is_gemma;
};

int64_t integer_at(const void* from, int64_t bytes, int64_t index) {
    return bytes == 4 ? ((const int32_t*)from)[index] : ((const int64_t*)from)[index];
}

// A row of codes and its scale, as `encode_rows` of kv_codes.py.
template <class T>
void encode(int8_t* to, const T* x, int64_t size) {
    Floats most{};
    for (int64_t i = 0; i < size; i += 16) {
        Floats values = load_some(x + i, size - i);
        Floats magnitude = choose(values < 0.0f, -values, values);
        most = choose(magnitude == magnitude, maximum(most, magnitude), splat(__builtin_inff()));  // NaN shows as infinity
    }
    float top = largest(most), scale = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
    for (int64_t i = 0; i < size; i += 16) {
        Floats values = nearest_whole(load_some(x + i, size - i) * inverse);
        store_codes(to + i, choose(values == values, values, Floats{}), size - i);
    }
    std::memcpy(to + size, &scale, sizeof scale);
}

template <class T, class K>
void prepare_head(const Prepare<T, K>& a, T* out, const T* x, const T* weight, int64_t token) {
    int64_t size = a.head_dim, half = a.rotary_dim / 2;
    float head[MOST_HEAD_DIM + 16];
    Floats squares{};
    for (int64_t i = 0; i < size; i += 16) {
        Floats values = load_some(x + i, size - i);
        squares = add_product(squares, values, values);
        store_vector(head + i, values);
    }
    if (weight) {
        float inverse = 1.0f / std::sqrt(sum(squares) / (float)size + (float)a.eps);
        for (int64_t i = 0; i < size; i += 16) {
            Floats values = load_vector<Floats>(head + i) * inverse, scale = load_some(weight + i, size - i);
            values = a.is_gemma ? values * (scale + 1.0f) : rounded<T>(values) * scale;
            store_vector(head + i, rounded<T>(values));
        }
    }
    if (!a.positions) {
        for (int64_t i = 0; i < size; i += 16) store_some(out + i, load_vector<Floats>(head + i), size - i);
        return;
    }
    const float* cos = a.cos_sin + integer_at(a.positions, a.positions_bytes, token) * a.cos_sin_stride;
    const float* sin = cos + half;
    for (int64_t i = 0; i < half; i += 16) {
        int64_t left = half - i;
        Floats first = load_some(head + i, left), second = load_some(head + half + i, left);
        Floats c = load_some(cos + i, left), s = load_some(sin + i, left);
        store_some(out + i, add_product(first * c, -second, s), left);
        store_some(out + half + i, add_product(second * c, first, s), left);
    }
    for (int64_t i = a.rotary_dim; i < size; i += 16) store_some(out + i, load_some(head + i, size - i), size - i);
}

template <class T, class K>
void qk_norm_rope_store(const void* arguments, Team& team) {
    const auto& a = *static_cast<const Prepare<T, K>*>(arguments);
    int64_t heads = a.q_heads + 2 * a.kv_heads, total = a.rows.count() * heads;
    int64_t taken = std::max<int64_t>(1, total / (team.size * 4));
    for (int64_t begin; (begin = team.take(taken)) < total;) {
        for (int64_t item = begin; item < std::min(begin + taken, total); item++) {
            int64_t token = item / heads, head = item % heads;
            const T* x = a.qkv + token * a.qkv_stride_token + head * a.qkv_stride_head;
            if (head < a.q_heads) {
                if (a.q) prepare_head(a, a.q + token * a.q_stride_token + head * a.q_stride_head, x, a.q_weight, token);
                continue;
            }
            int64_t slot = integer_at(a.slots, a.slots_bytes, token);
            if (slot < 0) continue;
            int64_t block = slot / a.block_size, offset = slot % a.block_size;
            head -= a.q_heads;
            if (head < a.kv_heads) {
                K* to = a.keys + block * a.keys_stride_block + head * a.keys_stride_head + offset * a.keys_stride_token;
                if constexpr (std::is_same_v<K, T>) {
                    prepare_head(a, to, x, a.k_weight, token);
                } else {
                    T key[MOST_HEAD_DIM];
                    prepare_head(a, key, x, a.k_weight, token);
                    encode(to, key, a.head_dim);
                }
            } else {
                head -= a.kv_heads;
                K* to = a.values + block * a.values_stride_block + head * a.values_stride_head + offset * a.values_stride_token;
                if constexpr (std::is_same_v<K, T>)
                    std::memcpy(to, x, a.head_dim * sizeof(T));
                else
                    encode(to, x, a.head_dim);
            }
        }
    }
}

}  // namespace

extern "C" {
void qk_norm_rope_store(const void* arguments, Team& team) {
    qk_norm_rope_store<Element, Element>(arguments, team);
}
void qk_norm_rope_store_int8(const void* arguments, Team& team) {
    qk_norm_rope_store<Element, int8_t>(arguments, team);
}
}
