// exp, 2^x, tanh, GELU and softplus of sixteen floats.
#pragma once

#include "vectors.h"

// exp(x) = 2^n exp(r), with |r| <= ln(2) / 2 and a polynomial for exp(r) (its coefficients: Cephes, expf.c); at most 2
// units in the last place off. 0 below -87.3, and infinity above 88.7.
static inline Floats exp16(Floats x) {
#if defined(__AVX512F__)
    const Floats bounded = (Floats)_mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-105.0f), (__m512)x));
    const Floats n = (Floats)_mm512_roundscale_ps((__m512)(bounded * 1.44269504088896341f), 8);
#else
    const Floats bounded = choose(x > 88.72f, splat(88.72f), choose(x < -87.33f, splat(-87.33f), x));
    const Floats n = add_product(12582912.0f, bounded, splat(1.44269504088896341f)) - 12582912.0f;  // the nearest integer
#endif
    const Floats r = add_product(add_product(bounded, n, -0.693359375f), n, 2.12194440e-4f);
    Floats p = splat(1.9875691500e-4f);
    p = add_product(1.3981999507e-3f, p, r);
    p = add_product(8.3334519073e-3f, p, r);
    p = add_product(4.1665795894e-2f, p, r);
    p = add_product(1.6666665459e-1f, p, r);
    p = add_product(5.0000001201e-1f, p, r);
    p = add_product(r, p, r * r) + 1.0f;
#if defined(__AVX512F__)
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    // 2^n in two factors: n may be 128.
    Ints whole = convert<Ints>(n), half = whole >> 1;
    p *= (Floats)((half + 127) << 23);
    p *= (Floats)((whole - half + 127) << 23);
    p = choose(x < -87.33f, Floats{}, p);
    p = choose(x > 88.72f, splat(__builtin_inff()), p);
    return choose(x == x, p, x);
#endif
}

// 2^x, at most 3 units in the last place off; 0 below -149, and infinity above 128.
static inline Floats exp2_16(Floats x) {
#if defined(__AVX512DQ__)
    // 2^floor(x) 2^r, with a polynomial for 2^r in [0, 1) that is exact at 0 and off by at most 8.3e-8 of it.
    Floats r = (Floats)_mm512_reduce_ps((__m512)x, 9);  // x - floor(x), and 0 at infinity
    Floats p = splat(1.8671302487e-3f);
    p = add_product(9.0170299438e-3f, p, r);
    p = add_product(5.5799913374e-2f, p, r);
    p = add_product(2.4016445008e-1f, p, r);
    p = add_product(6.9315131181e-1f, p, r);
    p = add_product(1.0f, p, r);
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    return exp16(x * 0.693147180559945309f);
#endif
}

static inline Floats tanh16(Floats x) {
    // (1 - e) / (1 + e) with e = exp(-2 |x|); near 0 the difference cancels, and the series is exact enough.
    Floats magnitude = choose(x < 0.0f, -x, x);
    Floats e = exp16(magnitude * -2.0f);
    Floats far = (1.0f - e) / (1.0f + e);
    Floats square = x * x;
    Floats series = add_product(0.133333333f, square, splat(-0.0539682540f));
    series = add_product(-0.333333333f, square, series);
    Floats near = magnitude * add_product(1.0f, square, series);
    Floats result = choose(magnitude < 0.125f, near, far);
    return choose(x < 0.0f, -result, result);
}

static inline Floats gelu_tanh(Floats x) {
    Floats inner = 0.7978845608028654f * add_product(x, 0.044715f * x * x, x);  // sqrt(2 / pi)
    return 0.5f * x * (1.0f + tanh16(inner));
}

// log(1 + exp(x)) = max(x, 0) + log(1 + e) with e = exp(-|x|), and log(1 + e) = 2 artanh(e / (2 + e)) as a series: at most
// 2 units in the last place off.
static inline Floats softplus(Floats x) {
    Floats e = exp16(choose(x < 0.0f, x, -x)), z = e / (e + 2.0f), square = z * z;
    Floats series = splat(1.0f / 13.0f);
    for (float power : {11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) series = add_product(1.0f / power, series, square);
    return choose(x < 0.0f, Floats{}, x) + 2.0f * add_product(z, z * square, series);
}
