"""A step of steady decode prepared on the device: tokens fed back, positions advanced.

For each row whose seq_len is not 0:

    input_id = next_id;  position += 1;  seq_len += 1
    slot     = block_table[row, position // block_size] * block_size + position % block_size

With this op between two steps, the host can launch a step before it knows the tokens that go in. Bytes moved:
about 40 for each row: the time is that of one launch.

Precision: integers.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.checks import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_integer,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv

_ROWS = 128
"""Rows of a program."""


def advance_decode_reference(
    next_ids: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    input_ids: Tensor,
    position_ids: Tensor,
    seq_lens: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(input_ids, position_ids, seq_lens, slots) advanced, row by row; arguments as for `advance_decode`."""
    input_ids, position_ids, seq_lens = input_ids.clone(), position_ids.clone(), seq_lens.clone()
    slots = torch.full_like(seq_lens, -1)
    columns = block_table.shape[1]
    for row in range(seq_lens.shape[0]):
        if seq_lens[row] == 0:
            continue
        input_ids[row] = next_ids[row]
        position_ids[row] += 1
        seq_lens[row] += 1
        column, offset = divmod(int(position_ids[row]), block_size)
        if column < columns:
            slots[row] = block_table[row, column] * block_size + offset
    return input_ids, position_ids, seq_lens, slots


@triton.jit(
    do_not_specialize=["seqs", "columns", "block_table_stride"],
    do_not_specialize_on_alignment=["input_ids", "position_ids", "seq_lens", "slots", "next_ids", "block_table"],
)
def _advance_decode_kernel(
    input_ids: tl.tensor,  # [seqs]
    position_ids: tl.tensor,  # [seqs]
    seq_lens: tl.tensor,  # [seqs]
    slots: tl.tensor,  # [seqs]
    next_ids: tl.tensor,  # [seqs]
    block_table: tl.tensor,  # [seqs, columns]
    seqs: tl.tensor,
    columns: tl.tensor,
    block_table_stride: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_batch = row < seqs
    seq_len = tl.load(seq_lens + row, mask=in_batch, other=0)
    active = seq_len != 0
    position = tl.load(position_ids + row, mask=active, other=0) + 1
    column = position // BLOCK_SIZE
    has_block = active & (column < columns)
    block = tl.load(block_table + row * block_table_stride + column, mask=has_block, other=0)
    slot = tl.where(has_block, block * BLOCK_SIZE + position % BLOCK_SIZE, -1)
    next_id = tl.load(next_ids + row, mask=active, other=0)
    tl.store(input_ids + row, next_id.to(tl.int32), mask=active)
    tl.store(position_ids + row, position, mask=active)
    tl.store(seq_lens + row, seq_len + 1, mask=active)
    tl.store(slots + row, slot, mask=in_batch)


def advance_decode_triton(
    next_ids: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    input_ids: Tensor,
    position_ids: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
) -> None:
    """Launch the kernel; arguments as for `advance_decode`, unchecked."""
    seqs, columns = block_table.shape
    if seqs == 0:
        return
    _advance_decode_kernel[(cdiv(seqs, _ROWS),)](
        input_ids,
        position_ids,
        seq_lens,
        slots,
        next_ids,
        block_table,
        seqs,
        columns,
        block_table.stride(0),
        BLOCK_SIZE=block_size,
        ROWS=_ROWS,
        num_warps=4,
        enable_fp_fusion=False,
    )


def advance_decode_torch(
    next_ids: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    input_ids: Tensor,
    position_ids: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
) -> None:
    """The fastest plain PyTorch; arguments as for `advance_decode`, unchecked."""
    active = seq_lens != 0
    torch.where(active, next_ids.to(torch.int32), input_ids, out=input_ids)
    position_ids.add_(active)
    seq_lens.add_(active)
    columns = block_table.shape[1]
    if columns == 0:
        slots.fill_(-1)
        return
    column = position_ids // block_size
    has_block = active & (column < columns)
    # Rows without a block look one up all the same: any that is in the table.
    block = block_table.gather(1, (column * has_block).long().unsqueeze(1)).squeeze(1)
    slots.copy_(torch.where(has_block, block * block_size + position_ids % block_size, -1))


def advance_decode(
    next_ids: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    input_ids: Tensor,
    position_ids: Tensor,
    seq_lens: Tensor,
    slots: Tensor,
) -> None:
    """Turn a decode step's inputs, in place, into those of the next: each row takes its sampled token.

    Rows with seq_len 0 are the padding of a captured step: they stay as they are, with slot -1. A row whose position
    comes to lie past the table's last column gets slot -1 too, so that nothing is written: the host has to give it a
    block, and a wider table, before that step. Within the table, that the column holds the row's own block is the
    host's part as well.

    Args:
        next_ids: [seqs], int32 or int64: the tokens that were sampled; may be `input_ids`.
        block_table: [seqs, columns], int32: each row's blocks in order.
        block_size: tokens of a block.
        input_ids: [seqs], int32, written: the token of each row.
        position_ids: [seqs], int32, read and written: its position.
        seq_lens: [seqs], int32, read and written: tokens of the sequence, this one included.
        slots: [seqs], int32, written: where the token's keys and values go.

    Raises:
        ValueError: a shape, device or stride does not fit, or `block_size` is not positive.
        TypeError: a dtype does not fit.
    """
    require_rank("block_table", block_table, "seqs, columns")
    require_dtype("block_table", block_table, torch.int32)
    require_dense_rows("block_table", block_table)
    if block_size < 1:
        raise ValueError(f"`block_size` is {block_size}; pass at least 1")
    require_integer("next_ids", next_ids)
    for name, rows in (
        ("next_ids", next_ids),
        ("input_ids", input_ids),
        ("position_ids", position_ids),
        ("seq_lens", seq_lens),
        ("slots", slots),
    ):
        require_shape(name, rows, (block_table.shape[0],), "one for each row of `block_table`")
        require_device(name, rows, "block_table", block_table.device)
        require_dense_rows(name, rows)
        if rows is not next_ids:
            require_dtype(name, rows, torch.int32)
    advance = advance_decode_triton if takes_triton(block_table) else advance_decode_torch
    advance(
        next_ids,
        block_table,
        block_size=block_size,
        input_ids=input_ids,
        position_ids=position_ids,
        seq_lens=seq_lens,
        slots=slots,
    )
