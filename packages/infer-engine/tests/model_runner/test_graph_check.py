"""What the check of captured steps compares, and the batches that it makes up."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from infer_cache import KVPool, StateMove, StatePool
from infer_engine.model_runner.graphs.checks import cache_rows
from infer_engine.model_runner.graphs.checks.closeness import are_close, are_drawn_alike, are_equal
from infer_engine.model_runner.graphs.checks.dummy_batches import LENGTHS, LONG_LENGTHS, DummyBatches
from infer_engine.model_runner.graphs.checks.dummy_states import DummyStates
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.request import Request
from infer_models.layer_states import StateHeads, StateSpec

NAN, INF = float("nan"), float("inf")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
DECODES, MIXED = BatchShape(4, 4, is_decode_only=True), BatchShape(16, 4, is_decode_only=False)


@pytest.mark.parametrize(("num_rows", "different", "alike"), [(8, 1, True), (8, 2, False), (7, 1, False), (1, 0, True)])
def test_a_few_drawn_tokens_may_differ_by_rounding(num_rows: int, different: int, *, alike: bool) -> None:
    expected = torch.arange(2 * num_rows).view(2, num_rows)
    found = expected.clone()
    found[1, :different] += 1
    assert are_drawn_alike(expected, found) is alike


@pytest.mark.parametrize(
    ("eager", "replayed", "close"),
    [
        ([1.0, -2.0], [1.0, -2.0 + 2.0**-6], True),
        ([1.0, -2.0], [1.0, -2.1], False),
        ([1.0, NAN], [1.0, NAN], True),  # as an fp16 model's rows that overflow
        ([1.0, INF], [1.0, INF], True),
        ([1.0, INF], [1.1, INF], False),
        ([1.0, NAN], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([1.0, INF], [1.0, -INF], False),
    ],
)
def test_rows_are_close_if_finite_or_else_equal(eager: list[float], replayed: list[float], *, close: bool) -> None:
    rows = [torch.tensor([values, [3.0, 4.0]], dtype=torch.float16) for values in (eager, replayed)]
    assert are_close(*rows) is close


def test_elements_that_are_not_numbers_are_equal_to_each_other() -> None:
    assert are_equal(torch.tensor([NAN, 1.0, NAN, INF]), torch.tensor([NAN, 1.0, 1.0, INF])).tolist() == [1, 1, 0, 1]


class NoFloat8(torch.overrides.TorchFunctionMode):
    """Refuses to index, fill or compare fp8, of which devices have some or none."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        del types
        if getattr(func, "__name__", "") in {"__getitem__", "__setitem__", "fill_", "isnan", "normal_", "random_"}:
            assert args[0].dtype != torch.float8_e4m3fn, func
        return func(*args, **(kwargs or {}))


# pytorch/pytorch#133605: `index_put_` was there for fp8 on CUDA, and `index` was not.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_rows_of_a_cache_of_any_dtype_are_read_and_overwritten(dtype: torch.dtype, *, is_transposed: bool) -> None:
    cache = torch.zeros(5, 3, 4, 8).to(dtype)
    if is_transposed:
        cache = torch.zeros(5, 4, 3, 8).to(dtype).transpose(1, 2)
    slots = torch.tensor([6, 19, 0])
    with NoFloat8():
        for value in (NAN, -8.0):
            cache_rows.fill(cache, 1.0)
            cache_rows.overwrite_rows(cache, slots, value)
            rows = cache_rows.read_rows(cache, slots).float()
            assert rows.shape == (3, 3, 8)
            assert bool((rows.isnan() if value != value else rows == value).all())
            assert cache_rows.is_nan(cache).sum() == (3 * 3 * 8 if value != value else 0)
            assert int((cache.float() == 1.0).sum()) == (20 - 3) * 3 * 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_finite_has_both_signs_and_is_the_same_each_time(dtype: torch.dtype) -> None:
    def noise() -> Tensor:
        cache = torch.zeros(2, 2, 16, 32).to(dtype)
        with NoFloat8():
            cache_rows.fill_with_noise(cache, torch.Generator().manual_seed(0))
        return cache.float()

    numbers = noise()
    assert bool(numbers.isfinite().all())
    assert 0.4 < float((numbers < 0).float().mean()) < 0.6
    assert 0.1 < float(numbers.abs().mean()) < 2.0
    assert len(set(numbers.flatten().tolist())) > 100
    assert torch.equal(numbers, noise())


def made_up(num_blocks: int, *, max_seq_len: int = 8192, windows: tuple[int | None, ...] = (None,)) -> DummyBatches:
    pool = KVPool(
        group_of_layer=tuple(range(len(windows))),
        num_blocks=(num_blocks,) * len(windows),
        kv_heads=1,
        block_size=64,
        head_dim=8,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    shapes = PaddedShapes(max_seqs=4, max_tokens=16)
    return DummyBatches(pool, shapes, windows=windows, max_rows=4, max_seq_len=max_seq_len, vocab_size=50)


def lengths(batches: DummyBatches, shape: BatchShape, *, variant: int, num_more: int = 0) -> list[int]:
    filled = batches.fill(shape, variant=variant, num_more=num_more)
    assert filled is not None
    items, edits = filled
    for group in {edit.group for _, edit in edits}:
        taken = [block for _, edit in edits if edit.group == group for block in edit.block_ids]
        assert len(set(taken)) == len(taken)
        assert 0 not in taken
    return [request.num_computed_tokens + count for request, count in items]


@pytest.mark.parametrize("windows", [(None,), (None, 100)])
@pytest.mark.parametrize("variant", [0, 1])
def test_the_first_decode_has_more_pieces_than_a_round_of_the_work_list(
    variant: int, windows: tuple[int | None, ...]
) -> None:
    batches = made_up(200, windows=windows)
    assert lengths(batches, DECODES, variant=variant)[0] == LONG_LENGTHS[variant] > 16 * 256
    assert lengths(batches, MIXED, variant=0)[0] == LONG_LENGTHS[0]


def test_a_long_sequence_leaves_the_others_their_blocks() -> None:
    first, *others = lengths(made_up(40), DECODES, variant=0)
    assert first == (39 - 3 * 4) * 64
    assert others == list(LENGTHS[1:4])
    assert lengths(made_up(200, max_seq_len=300), DECODES, variant=0)[0] == 299
    assert lengths(made_up(10), DECODES, variant=0)[0] == LENGTHS[0]


def test_sequences_have_room_for_the_tokens_that_follow() -> None:
    batches = made_up(40)
    assert lengths(batches, DECODES, variant=0, num_more=8) == list(LENGTHS[:4])
    filled = batches.fill(DECODES, variant=0, num_more=8)
    assert filled is not None
    items, edits = filled
    blocks = {row: len(edit.block_ids) for row, edit in edits}
    assert [blocks[request.row] for request, _ in items] == [2, 1, 5, 2]  # of 73, 10, 265 and 72 tokens
    assert made_up(40, max_seq_len=9).fill(DECODES, variant=0, num_more=8) is None


@pytest.mark.parametrize("shape", [DECODES, MIXED])
def test_sequences_of_nan_lie_in_the_block_that_no_other_has(shape: BatchShape) -> None:
    filled = made_up(40).fill_with_nan(shape)
    assert filled is not None
    items, edits = filled
    assert sum(count for _, count in items) == shape.num_tokens
    assert all(edit.block_ids == [0] for _, edit in edits)
    assert made_up(4).fill_with_nan(shape) is None  # too few blocks to leave one out


def test_other_blocks_are_seen_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_engine.model_runner.graphs.checks.dummy_batches._BLOCKS_AT_ONCE", 16)
    batches = made_up(300)
    batches.write_noise()
    assert batches.are_others_untouched()
    cache_rows.overwrite_rows(batches._pool.value_cache(0), torch.tensor([299 * 64 + 5]), 1.0)  # noqa: SLF001
    assert not batches.are_others_untouched()


def states_of(num_slots: int, *, max_rows: int = 4) -> tuple[DummyStates, StatePool]:
    convolution = StateSpec(num_before=2, parts=(StateHeads(2, 4),))
    specs = [replace(convolution, matrices=(2, 4, 4)), None, convolution]
    pool = StatePool(specs, num_slots=num_slots, dtype=torch.bfloat16, device=torch.device("cpu"))
    return DummyStates(pool, max_rows=max_rows), pool


def moves_of(items: list[tuple[Request, int]]) -> list[StateMove]:
    return [request.state_move for request, _ in items]


def test_sequences_read_noise_and_write_elsewhere_and_the_next_step_reads_that() -> None:
    states, pool = states_of(11)
    items = [(dummy_request([1, 2], num_computed=computed, row=0), 1) for computed in (1, 0, 1)]
    states.write_noise()
    states.move(items)
    read, write = zip(*moves_of(items), strict=True)
    assert read[1] == -1
    for tensor in pool.tensors():
        assert tensor[[read[0], read[2]]].isfinite().all()
        assert tensor[[*write, 10]].isnan().all()
    states.move(items, step=1)
    assert moves_of(items) == [(write[0], 0), (-1, 1), (write[2], 2)]
    states.move_to_nan(items)
    nan_slots = [move.read for move in moves_of(items)]
    assert all(tensor[nan_slots].isnan().all() for tensor in pool.tensors())


def test_states_that_a_step_writes_are_forgotten_and_returned_and_others_are_watched() -> None:
    states, pool = states_of(12)
    states.write_noise()
    states.forget(3, -8.0)
    assert all((result == -8.0).all() and len(result) == 3 for result in states.results(3))
    assert len(states.results(3)) == 3  # two convolutions, and matrices
    assert states.are_others_untouched(3)
    pool.matrices(0)[11, 0, 0, 0] = 1.0
    assert not states.are_others_untouched(3)
    states.clear()
    assert not any(tensor.any() for tensor in pool.tensors())


def test_of_a_batch_larger_than_half_of_the_slots_the_first_sequences_write_states() -> None:
    states, pool = states_of(7)
    states.write_noise()
    items = [(dummy_request([1, 2], num_computed=1, row=0), 1) for _ in range(5)]
    states.move(items)
    moves = moves_of(items)
    assert moves == [(0, 3), (1, 4), (2, 5), (0, -1), (1, -1)]
    assert all(tensor[[move.read for move in moves]].isfinite().all() for tensor in pool.tensors())
    states.forget(5, -8.0)
    assert all((result == -8.0).all() and len(result) == 3 for result in states.results(5))
    assert states.are_others_untouched(5)
    without = DummyStates(None, max_rows=4)
    without.move(items)
    assert {*moves_of(items)} == {(-1, -1)}
    assert (without.results(2), without.are_others_untouched(2)) == ([], True)
