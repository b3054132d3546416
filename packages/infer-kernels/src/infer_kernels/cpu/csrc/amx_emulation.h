// The matrix instructions in plain C++, with the bits that Intel's manual gives them; what a CPU refuses ends the process.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "vectors.h"

namespace amx::emulation {

struct alignas(64) Tile {
    uint8_t bytes[16][64];
    int rows, row_bytes;  // 0: not configured
};

inline thread_local Tile tiles[8];

inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "AMX: %s\n", what);
    std::abort();
}

inline void release() { std::memset(tiles, 0, sizeof tiles); }

inline void load_config(const void* at) {
    uint8_t config[64];
    std::memcpy(config, at, sizeof config);
    require(config[0] == 1 && config[1] == 0, "only palette 1 is known, from the first row on");
    for (int i = 2; i < 64; i++)
        require(config[i] == 0 || (i >= 16 && i < 32) || (i >= 48 && i < 56), "a reserved byte is not zero");
    release();
    for (int i = 0; i < 8; i++) {
        tiles[i].row_bytes = config[16 + 2 * i] | config[17 + 2 * i] << 8;
        tiles[i].rows = config[48 + i];
        require(tiles[i].rows <= 16 && tiles[i].row_bytes <= 64, "a tile is too large");
        require(tiles[i].row_bytes % 4 == 0 && (tiles[i].rows == 0) == (tiles[i].row_bytes == 0), "a tile has rows without bytes, or half a word");
    }
}

inline Tile& configured(int number) {
    require(tiles[number].rows > 0, "a tile is not configured");
    return tiles[number];
}

inline void zero(int number) { std::memset(configured(number).bytes, 0, sizeof tiles[number].bytes); }

inline void load(int number, const void* at, int64_t stride) {
    Tile& tile = configured(number);
    zero(number);
    for (int row = 0; row < tile.rows; row++)
        std::memcpy(tile.bytes[row], static_cast<const uint8_t*>(at) + row * stride, tile.row_bytes);
}

inline void store(int number, void* at, int64_t stride) {
    const Tile& tile = configured(number);
    for (int row = 0; row < tile.rows; row++)
        std::memcpy(static_cast<uint8_t*>(at) + row * stride, tile.bytes[row], tile.row_bytes);
}

// Zeros in place of numbers below 2^-126.
inline Floats flushed(Floats value) {
    Words bits = (Words)value;
    return choose((bits & 0x7f800000u) == 0, (Floats)(bits & 0x80000000u), value);
}

// Returns the tiles of a product, whose shapes must fit.
inline Tile& operands(int sums, int inputs, int weights) {
    Tile &c = configured(sums), &a = configured(inputs), &b = configured(weights);
    require(sums != inputs && inputs != weights && sums != weights, "a product wants three tiles");
    require(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows, "shapes of a product do not fit");
    return c;
}

inline void multiply_bf16(int sums, int inputs, int weights) {
    Tile& c = operands(sums, inputs, weights);
    const Tile &a = tiles[inputs], &b = tiles[weights];
    Floats firsts[16], seconds[16];
    for (int pair = 0; pair < b.rows; pair++) {
        Words words = load_vector<Words>(b.bytes[pair]);
        firsts[pair] = flushed(as_floats(words << 16));
        seconds[pair] = flushed(as_floats(words & 0xffff0000u));
    }
    for (int row = 0; row < c.rows; row++) {
        Floats first{}, second{};
        for (int pair = 0; pair < b.rows; pair++) {
            uint32_t word;
            std::memcpy(&word, a.bytes[row] + 4 * pair, 4);
            first = flushed(multiply_add(flushed(as_floats(Words{} + (word << 16))), firsts[pair], first));
            second = flushed(multiply_add(flushed(as_floats(Words{} + (word & 0xffff0000u))), seconds[pair], second));
        }
        Floats before = flushed(load_vector<Floats>(c.bytes[row]));
        store_vector(c.bytes[row], flushed(before + flushed(first + second)));
    }
}

}  // namespace amx::emulation
