"""The kernels around a step (tokens fed back, blocks copied, rows gathered), interpreted, against their references."""

import pytest
import torch

from infer_kernels.advance_decode import advance_decode, advance_decode_reference
from infer_kernels.copy_blocks import copy_blocks, copy_blocks_reference
from infer_kernels.gather_rows import gather_rows, gather_rows_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("seqs", [0, 1, 7, 128, 129])
@pytest.mark.parametrize(("block_size", "columns"), [(1, 40), (5, 3), (16, 1), (64, 2), (4, 0)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_advanced_rows_equal_reference(seqs: int, block_size: int, columns: int, dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize(("kv_heads", "block_size", "head_dim"), [(1, 1, 16), (3, 5, 48), (2, 64, 128), (1, 33, 256)])
@pytest.mark.parametrize("pairs", [0, 1, 3])
def test_copied_blocks_equal_reference(
    pairs: int, kv_heads: int, block_size: int, head_dim: int, *, token_major: bool
) -> None:
    storage = torch.randn(2, 9, block_size, kv_heads, head_dim).transpose(2, 3)
    k_cache, v_cache = storage if token_major else storage.contiguous()
    sources, destinations = torch.tensor([[8, 2, 2], [0, 7, 4]])
    sources, destinations = sources[:pairs].int(), destinations[:pairs]
    expected = copy_blocks_reference(k_cache, v_cache, sources, destinations)
    copy_blocks(k_cache, v_cache, sources, destinations)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_blocks_keep_their_bits_in_every_dtype(dtype: torch.dtype) -> None:
    # No two strides agree.
    k_cache, v_cache = torch.randn(4, 2, 7, 24).to(dtype), torch.randn(4, 3, 9, 32).to(dtype)[:, :2, :7, :24]
    copy_blocks(k_cache, v_cache, torch.tensor([3]), torch.tensor([1]))
    assert torch.equal(k_cache[1], k_cache[3])
    assert torch.equal(v_cache[1], v_cache[3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (7, 17), (5, 1025)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_gathered_rows_equal_reference(rows: int, hidden: int, dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    x = torch.randn(rows, 2 * hidden).to(dtype)[:, :hidden]
    index = torch.tensor([rows - 1, -1, 0, 0, rows // 2], dtype=index_dtype)
    out = torch.full((5, 2 * hidden), 3.0, dtype=dtype)
    assert torch.equal(gather_rows(x, index), gather_rows_reference(x, index))
    gather_rows(x, index, out=out[:, hidden:])
    assert torch.equal(out[:, hidden:], gather_rows_reference(x, index))
    assert (out[:, :hidden] == 3.0).all()


def test_gathering_from_no_rows_gives_zeros_and_no_index_gives_no_rows() -> None:
    assert torch.equal(gather_rows(torch.empty(0, 4), torch.tensor([-1, -1])), torch.zeros(2, 4))
    assert gather_rows(torch.empty(3, 4), torch.empty(0, dtype=torch.int32)).shape == (0, 4)
