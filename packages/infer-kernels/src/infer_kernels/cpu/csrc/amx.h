// Intel's matrix instructions (AMX): eight tiles of up to 16 rows of 64 bytes, and the product of two of them.
//
//     tiles 0 to 3   sums       [rows][16 outputs] fp32
//     tiles 4 and 5  inputs     [rows][16 pairs of inputs]
//     tiles 6 and 7  weights    [16 pairs of inputs][16 outputs][2 inputs]
//
// A product adds to each sum what two chains over the pairs give, one of the first and one of the second inputs, each step
// fused; numbers below 2^-126 are zeros. A row's bits depend neither on the other rows nor on their number.
//
// HAS_AMX_BF16 is 1 where the compiler knows the CPU to have these instructions, or with -DINFER_EMULATED_AMX=1, which computes
// them in plain C++ (=0: as where the system does not grant them).
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(INFER_EMULATED_AMX)
#include "amx_emulation.h"
#define HAS_AMX_BF16 1
#elif defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__AMX_BF16__)
#define HAS_AMX_BF16 1
#endif
#if defined(__AMX_INT8__)
#define HAS_AMX_INT8 1
#endif
#endif
#if !defined(HAS_AMX_BF16)
#define HAS_AMX_BF16 0
#endif
#if !defined(HAS_AMX_INT8)
#define HAS_AMX_INT8 0
#endif

namespace amx {

constexpr int MOST_ROWS = 16;
constexpr int64_t INPUTS = 32;  // of bf16, in a row of a tile

// What `ldtilecfg` reads. Every tile is configured, because one of no rows may not be used at all.
struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};

    Config() = default;
    Config(int64_t count) { std::fill_n(rows, 6, (uint8_t)count); }
};

// Rows as tiles: as few as possible and all of one height, so that one configuration serves them. The last may begin before
// the one in front of it ends.
struct RowTiles {
    int64_t rows, count, height;

    explicit RowTiles(int64_t rows)
        : rows(rows), count((rows + MOST_ROWS - 1) / MOST_ROWS), height(count ? (rows + count - 1) / count : 0) {}
    int64_t first(int64_t tile) const { return std::min(tile * height, rows - height); }
    int64_t padded_rows() const { return count * height; }
};

#if defined(INFER_EMULATED_AMX)

inline bool is_granted() { return INFER_EMULATED_AMX; }
inline void load_config(const Config& config) { emulation::load_config(&config); }
inline void release_tiles() { emulation::release(); }
template <int TILE>
inline void load(const void* at, int64_t stride) {
    emulation::load(TILE, at, stride);
}
template <int TILE>
inline void store(void* at, int64_t stride) {
    emulation::store(TILE, at, stride);
}
template <int TILE>
inline void zero() {
    emulation::zero(TILE);
}
template <int SUMS, int INPUTS, int WEIGHTS>
inline void multiply() {
    emulation::multiply_bf16(SUMS, INPUTS, WEIGHTS);
}

#elif HAS_AMX_BF16 || HAS_AMX_INT8

// Whether the system lets this process use tiles. Linux wants to be asked, once a process: its threads and what it forks may
// then use them too. Some sandboxes answer nothing and grant nothing, so the answer is read.
inline bool is_granted() {
    static const bool granted = [] {
        constexpr long GET_PERMISSIONS = 0x1022, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_*_XCOMP_PERM
        uint64_t permissions = 0;
        return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 &&
               syscall(SYS_arch_prctl, GET_PERMISSIONS, &permissions) == 0 && (permissions >> TILE_DATA & 1);
    }();
    return granted;
}

// In assembly because compilers differ in what they take their own functions to read and write: some leave stores for later
// that a tile's load needs.
inline void load_config(const Config& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
inline void release_tiles() { asm volatile("tilerelease"); }
template <int TILE>
inline void load(const void* at, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(at), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void store(void* at, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(at), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
template <int SUMS, int INPUTS, int WEIGHTS>
inline void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(INPUTS), "i"(WEIGHTS));
}

#else

inline bool is_granted() { return false; }
inline void load_config(const Config&) {}
inline void release_tiles() {}

#endif

inline thread_local bool holds_tiles = false;

// Prepares this thread's tiles. Every kernel that uses tiles does this first: other libraries configure them too, in the same
// threads.
inline void configure(const Config& config) {
    load_config(config);
    holds_tiles = true;
}

// Gives the tiles back at the end of a step: a thread that holds them is dearer to switch.
inline void release() {
    if (holds_tiles) release_tiles();
    holds_tiles = false;
}

}  // namespace amx
