// Sixteen numbers as two vectors of AVX2, or four of 128 bits: what vectors.h computes with where registers are narrower.
//
// GCC has vectors of any length, but keeps those that are longer than a register in memory, and each operation loads and
// stores them. These are structures of vectors that fit, which it keeps in registers.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__AVX2__)
constexpr int PART_BYTES = 32;
#else
constexpr int PART_BYTES = 16;
#endif

// Repeats a statement for each part `i`. It is no loop, which compilers might leave as one: parts of it would be in memory.
#define FOR_PARTS(STATEMENT)                                                \
    do {                                                                    \
        { constexpr int i = 0; STATEMENT; }                                 \
        if constexpr (PARTS > 1) { constexpr int i = 1; STATEMENT; }        \
        if constexpr (PARTS > 2) { constexpr int i = 2; STATEMENT; }        \
        if constexpr (PARTS > 2) { constexpr int i = 3; STATEMENT; }        \
    } while (0)

// Chosen elements of two vectors, counted through both.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#if !defined(PICK)
#define PICK(a, b, ...) __builtin_shuffle(a, b, (decltype(a == b)){__VA_ARGS__})
#endif

template <class T>
struct Sixteen {
    static constexpr int LANES = 16 * sizeof(T) < PART_BYTES ? 16 : PART_BYTES / sizeof(T), PARTS = 16 / LANES;
    typedef T Part __attribute__((vector_size(LANES * sizeof(T))));
    typedef Sixteen<int32_t> Condition;  // of T of 32 bits: each lane all ones or zeros

    Part parts[PARTS];

    // The same bits as numbers of another type.
    template <class U>
    explicit operator Sixteen<U>() const {
        Sixteen<U> bits;
        FOR_PARTS(bits.parts[i] = (typename Sixteen<U>::Part)parts[i]);
        return bits;
    }

    T operator[](int lane) const { return parts[lane / LANES][lane % LANES]; }

#define OPERATION(SIGN)                                                                   \
    friend Sixteen operator SIGN(Sixteen a, Sixteen b) {                                  \
        FOR_PARTS(a.parts[i] = a.parts[i] SIGN b.parts[i]);                               \
        return a;                                                                         \
    }                                                                                     \
    friend Sixteen operator SIGN(Sixteen a, T b) {                                        \
        FOR_PARTS(a.parts[i] = a.parts[i] SIGN b);                                        \
        return a;                                                                         \
    }                                                                                     \
    friend Sixteen operator SIGN(T a, Sixteen b) {                                        \
        FOR_PARTS(b.parts[i] = a SIGN b.parts[i]);                                        \
        return b;                                                                         \
    }                                                                                     \
    friend Sixteen& operator SIGN##=(Sixteen& a, Sixteen b) { return a = a SIGN b; }      \
    friend Sixteen& operator SIGN##=(Sixteen& a, T b) { return a = a SIGN b; }
    OPERATION(+)
    OPERATION(-)
    OPERATION(*)
    OPERATION(/)
    OPERATION(&)
    OPERATION(|)
    OPERATION(^)
#undef OPERATION
#define SHIFT(SIGN)                                            \
    friend Sixteen operator SIGN(Sixteen a, int places) {      \
        FOR_PARTS(a.parts[i] = a.parts[i] SIGN places);        \
        return a;                                              \
    }
    SHIFT(<<)
    SHIFT(>>)
#undef SHIFT
#define COMPARISON(SIGN)                                                                  \
    friend Condition operator SIGN(Sixteen a, Sixteen b) {                                \
        Condition found;                                                                  \
        FOR_PARTS(found.parts[i] = (typename Condition::Part)(a.parts[i] SIGN b.parts[i])); \
        return found;                                                                     \
    }                                                                                     \
    friend Condition operator SIGN(Sixteen a, T b) {                                      \
        Condition found;                                                                  \
        FOR_PARTS(found.parts[i] = (typename Condition::Part)(a.parts[i] SIGN b));        \
        return found;                                                                     \
    }
    COMPARISON(<)
    COMPARISON(<=)
    COMPARISON(>)
    COMPARISON(>=)
    COMPARISON(==)
    COMPARISON(!=)
#undef COMPARISON
    Sixteen operator-() const {
        Sixteen negative;
        FOR_PARTS(negative.parts[i] = -parts[i]);
        return negative;
    }
};

template <class T>
static inline Sixteen<T> choose(Sixteen<int32_t> condition, Sixteen<T> yes, Sixteen<T> no) {
    constexpr int PARTS = Sixteen<T>::PARTS;
    FOR_PARTS(no.parts[i] = condition.parts[i] ? yes.parts[i] : no.parts[i]);
    return no;
}

// The nearest numbers of another type, as a cast makes them.
template <class To, class T>
static inline To convert(Sixteen<T> from) {
    constexpr int PARTS = To::PARTS;
    To numbers;
    if constexpr (Sixteen<T>::PARTS == PARTS)
        FOR_PARTS(numbers.parts[i] = __builtin_convertvector(from.parts[i], typename To::Part));
    else
        for (int lane = 0; lane < 16; lane++) numbers.parts[lane / To::LANES][lane % To::LANES] = from[lane];
    return numbers;
}

// `interleave` of two parts, where STEP is smaller than a part.
template <class Part, int STEP, int BACK, int AHEAD, int... LANES>
static inline Part blend(Part a, Part b, std::integer_sequence<int, LANES...>) {
    return PICK(a, b, (LANES & STEP ? (int)sizeof...(LANES) + LANES - BACK : LANES + AHEAD)...);
}

// Lanes whose number has the bit STEP, a power of two: those of `b`, from BACK lanes before; the others those of `a`, from
// AHEAD lanes behind.
template <int STEP, int BACK, int AHEAD, class T>
static inline Sixteen<T> interleave(Sixteen<T> a, Sixteen<T> b) {
    constexpr int LANES = Sixteen<T>::LANES, PARTS = Sixteen<T>::PARTS;
    Sixteen<T> taken;
    if constexpr (STEP >= LANES) {
        FOR_PARTS(if constexpr ((i * LANES & STEP) != 0) taken.parts[i] = b.parts[i - BACK / LANES];
                  else taken.parts[i] = a.parts[i + AHEAD / LANES]);
    } else {
        FOR_PARTS((taken.parts[i] = blend<typename Sixteen<T>::Part, STEP, BACK, AHEAD>(
                       a.parts[i], b.parts[i], std::make_integer_sequence<int, LANES>{})));
    }
    return taken;
}
