"""The kernel that advances decodes on the device, interpreted, against its reference."""

import torch

from infer_kernels.advance_decode import advance_decode, advance_decode_reference
from infer_kernels.testing.pairwise import parametrize_pairwise


@parametrize_pairwise(
    seqs=[0, 1, 7, 128, 129],
    blocks=[(1, 40), (5, 3), (16, 1), (64, 2), (4, 0)],
    dtype=[torch.int32, torch.int64],
)
def test_advanced_rows_equal_reference(seqs: int, blocks: tuple[int, int], dtype: torch.dtype) -> None:
    block_size, columns = blocks
    seq_lens = torch.randint(0, 41, (seqs,), dtype=torch.int32)
    position_ids, next_ids = (seq_lens - 1).clamp(min=0), torch.randint(1000, (seqs,), dtype=dtype)
    block_table = torch.randint(1000, (seqs, columns + 3), dtype=torch.int32)[:, :columns]
    input_ids, slots = torch.randint(1000, (2, seqs), dtype=torch.int32)
    expected = advance_decode_reference(
        next_ids,
        block_table,
        block_size=block_size,
        input_ids=input_ids,
        position_ids=position_ids,
        seq_lens=seq_lens,
    )
    advance_decode(
        next_ids,
        block_table,
        block_size=block_size,
        input_ids=input_ids,
        position_ids=position_ids,
        seq_lens=seq_lens,
        slots=slots,
    )
    assert all(map(torch.equal, (input_ids, position_ids, seq_lens, slots), expected))
