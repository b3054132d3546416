// Computes AMX instructions where a CPU has none: each traps, and the handler does what Intel's manual says. Preloaded, so
// that machine code with these instructions runs, in the places and in the order that the compiler gave it.
//
//     c++ -std=c++17 -O2 -fPIC -shared -march=native -I CSRC amx_traps.cpp -o amx_traps.so
//     LD_PRELOAD=amx_traps.so INFER_CPU_KERNELS_FLAGS="-mamx-tile -mamx-bf16 -mamx-int8" pytest -p no:faulthandler ...
#include <csignal>
#include <cstdarg>
#include <sys/syscall.h>
#include <ucontext.h>

#include <atomic>
#include <cerrno>

#include "amx_emulation.h"

namespace emulation = amx::emulation;

extern "C" {
std::atomic<int> amx_threads_with_tiles{0};

// The system's answers when a process asks for tiles, and all other calls as they are.
long syscall(long number, ...) noexcept {
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (long& each : arguments) each = va_arg(list, long);
    va_end(list);
    if (number == SYS_arch_prctl && arguments[0] == 0x1023) return arguments[1] == 18 ? 0 : -1;
    if (number == SYS_arch_prctl && arguments[0] == 0x1022) {
        *reinterpret_cast<uint64_t*>(arguments[1]) = 1u << 18 | 1u << 17;
        return 0;
    }
    register long r10 asm("r10") = arguments[3];
    register long r8 asm("r8") = arguments[4];
    register long r9 asm("r9") = arguments[5];
    long result;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095) return result;
    errno = (int)-result;
    return -1;
}
}

namespace {

constexpr int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

thread_local bool has_tiles = false;

void set_tiles(bool now) {
    amx_threads_with_tiles += (int)now - (int)has_tiles;
    has_tiles = now;
}

// Bytes of inputs, signed or not, times bytes of weights.
void multiply_bytes(int sums, int inputs, int weights, bool is_signed, bool has_signed_weights) {
    emulation::Tile& c = emulation::operands(sums, inputs, weights);
    const emulation::Tile &a = emulation::tiles[inputs], &b = emulation::tiles[weights];
    for (int row = 0; row < c.rows; row++)
        for (int column = 0; column < c.row_bytes / 4; column++) {
            int32_t sum;
            std::memcpy(&sum, c.bytes[row] + 4 * column, 4);
            for (int k = 0; k < a.row_bytes; k++) {
                uint8_t input = a.bytes[row][k], weight = b.bytes[k / 4][4 * column + k % 4];
                sum += (is_signed ? (int8_t)input : (int)input) * (has_signed_weights ? (int8_t)weight : (int)weight);
            }
            std::memcpy(c.bytes[row] + 4 * column, &sum, 4);
        }
}

// An instruction with a VEX prefix of three bytes, of the map 0F38.
struct Instruction {
    const uint8_t* at;
    greg_t* registers;
    int reg, rm, mod, vvvv, prefix, opcode, length;
    uint8_t* address = nullptr;  // of the operand in memory
    int64_t stride = 0;          // what the index register gives
    bool has_index = false;

    Instruction(const uint8_t* at, greg_t* registers) : at(at), registers(registers) {
        bool is_high_base = !(at[1] & 0x20), is_high_index = !(at[1] & 0x40);
        vvvv = ~(at[2] >> 3) & 15;
        prefix = at[2] & 3;  // none, 66, F3, F2
        opcode = at[3];
        mod = at[4] >> 6;
        reg = at[4] >> 3 & 7;
        rm = at[4] & 7;
        length = 5;
        if (mod == 3) return;
        int64_t base = 0;
        int displacement_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
        if (rm == 4) {
            int sib = at[length++], index = (sib >> 3 & 7) | is_high_index << 3;
            has_index = index != 4;
            if (has_index) stride = registers[REGISTERS[index]] << (sib >> 6);
            if ((sib & 7) == 5 && mod == 0)
                displacement_bytes = 4;
            else
                base = registers[REGISTERS[(sib & 7) | is_high_base << 3]];
        } else if (rm == 5 && mod == 0) {
            displacement_bytes = 4;
            base = (int64_t)at + length + 4;
        } else {
            base = registers[REGISTERS[rm | is_high_base << 3]];
        }
        int32_t displacement = 0;
        if (displacement_bytes == 1) displacement = (int8_t)at[length];
        if (displacement_bytes == 4) std::memcpy(&displacement, at + length, 4);
        length += displacement_bytes;
        address = reinterpret_cast<uint8_t*>(base + displacement);
    }

    // Whether it was one of AMX, which is then done.
    bool execute() const {
        bool has_rows = address && rm == 4 && has_index;
        switch (opcode << 4 | prefix) {
            case 0x490:
                set_tiles(address != nullptr);
                if (address)
                    emulation::load_config(address + stride);
                else
                    emulation::release();
                return true;
            case 0x493: emulation::zero(reg); return true;
            case 0x4b1:
            case 0x4b3: emulation::load(reg, address, stride); return has_rows;
            case 0x4b2: emulation::store(reg, address, stride); return has_rows;
            case 0x5c2: emulation::multiply_bf16(reg, rm, vvvv); return true;
            case 0x5e0: multiply_bytes(reg, rm, vvvv, false, false); return true;
            case 0x5e1: multiply_bytes(reg, rm, vvvv, false, true); return true;
            case 0x5e2: multiply_bytes(reg, rm, vvvv, true, false); return true;
            case 0x5e3: multiply_bytes(reg, rm, vvvv, true, true); return true;
        }
        return false;
    }
};

void handle(int, siginfo_t*, void* context) {
    auto* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (at[0] == 0xc4 && (at[1] & 0x1f) == 2) {
        Instruction instruction(at, registers);
        if (instruction.execute()) {
            registers[REG_RIP] += instruction.length;
            return;
        }
    }
    signal(SIGILL, SIG_DFL);  // it is not ours, and happens again
}

[[gnu::constructor]] void install() {
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
}

}  // namespace
