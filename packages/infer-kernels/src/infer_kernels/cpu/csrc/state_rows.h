// Sequences with a state of fixed size: their rows of a step, and the slots in which states are read and written.
#pragma once

#include "team.h"

// The fields of `StateRows` in states/state_rows.py, with their number first, as for every kernel.
struct StateRows {
    Rows seqs;
    const int32_t* query_start;  // [seqs + 1]
    const int32_t* read;         // [seqs]; negative: the state is zeros
    const int32_t* write;        // [seqs]; negative: it is not kept

    int64_t first_row(int64_t seq) const { return query_start[seq]; }
    int64_t end_row(int64_t seq) const { return query_start[seq + 1]; }
    // Whether a sequence goes on from what the one before it writes. One thread computes both, in turn.
    bool goes_on(int64_t seq) const {
        return seq > 0 && seq < seqs.count() && read[seq] >= 0 && read[seq] == write[seq - 1];
    }
};
