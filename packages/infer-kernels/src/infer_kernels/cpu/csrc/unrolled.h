// Loops whose numbers are constants.
#pragma once

#include <utility>

// Calls f(0) to f(COUNT - 1), each number a constant: arrays that are only indexed so lie in registers. Sanitizers, which need
// no registers, would take minutes to compile that.
#if defined(__SANITIZE_ADDRESS__)
#define ALWAYS_INLINE
template <int COUNT, class F>
inline void unrolled(const F& f) {
    for (int i = 0; i < COUNT; i++) f(i);
}
#else
#define ALWAYS_INLINE __attribute__((always_inline))
template <class F, int... I>
ALWAYS_INLINE inline void call_each(const F& f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
}
template <int COUNT, class F>
ALWAYS_INLINE inline void unrolled(const F& f) {
    call_each(f, std::make_integer_sequence<int, COUNT>{});
}
#endif
