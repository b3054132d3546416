"""What a step's inputs say of its rows."""

import dataclasses
from typing import Any

import msgspec
import pytest
import torch

from infer_cache import StateMove, TableEdit
from infer_engine.messages import Submit
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import STATES, BatchShape, RowPart, StagedStep
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request, RequestState


def request_with(*, prompt: int, generated: int, computed: int, row: int) -> Request:
    submitted = Submit(
        request_id=str(row), prompt_token_ids=list(range(prompt)), params=SamplingParams(), max_tokens=9, seed=0
    )
    request = Request(submitted, arrival=row)
    request.token_ids += range(generated)
    request.num_computed_tokens = computed
    request.row = row
    return request


def staging_for(*, num_groups: int = 1, **options: Any) -> InputBuffers:
    sizes: dict[str, Any] = {"max_tokens": 16, "max_seqs": 4, "max_seq_len": 16, "block_size": 4}
    return InputBuffers(num_groups=num_groups, device=torch.device("cpu"), **sizes, **options)


def test_a_prompts_last_token_alone_is_still_prefill() -> None:
    input_buffers = staging_for()
    items = [
        (request_with(prompt=5, generated=1, computed=5, row=0), 1),  # a decode
        (request_with(prompt=5, generated=0, computed=4, row=1), 1),  # the last chunk of a prompt
        (request_with(prompt=5, generated=0, computed=0, row=2), 5),  # a whole prompt
        (request_with(prompt=2, generated=4, computed=0, row=3), 6),  # all that a preempted request had
    ]
    assert input_buffers.build(items, []).is_prefill.tolist() == [False, True, True, True]


def test_a_token_that_was_found_is_not_stored_again() -> None:
    input_buffers = staging_for(num_groups=2)
    found_whole = request_with(prompt=8, generated=0, computed=7, row=1)
    found_whole.num_reused_tokens = 8
    found_half = request_with(prompt=6, generated=0, computed=4, row=2)
    found_half.num_reused_tokens = 4
    edits = [(row, TableEdit(group, 0, [3 + row, 5 + row])) for row in (1, 2) for group in (0, 1)]
    slots = input_buffers.build([(found_whole, 1), (found_half, 2)], edits).slots
    assert [group.tolist() for group in slots] == [[-1, 7 * 4, 7 * 4 + 1]] * 2


def test_a_step_is_of_decodes_alone_if_all_its_requests_decode() -> None:
    decodes = [
        request_with(prompt=5, generated=1, computed=5, row=0),
        request_with(prompt=2, generated=9, computed=10, row=1),
    ]
    for request in decodes:
        request.state = RequestState.DECODE
    prompt = request_with(prompt=5, generated=0, computed=4, row=2)
    assert staging_for().build([(request, 1) for request in decodes], []).is_decode_only
    assert not staging_for().build([(request, 1) for request in (*decodes, prompt)], []).is_decode_only


def test_a_batch_of_the_same_decodes_goes_on_where_the_one_before_ended() -> None:
    input_buffers = staging_for()
    requests = [request_with(prompt=2, generated=1, computed=2, row=row) for row in (3, 1)]
    edits = [(row, TableEdit(0, 0, [7 + row, 2 + row])) for row in (3, 1)]
    for position in range(2, 6):
        for request in requests:
            request.state = RequestState.DECODE
        batch = input_buffers.build([(request, 1) for request in requests], edits if position == 2 else [])
        assert batch.position_ids.tolist() == [position] * 2
        blocks = [10, 8] if position < 4 else [5, 3]
        assert batch.slots[0].tolist() == [4 * block + position % 4 for block in blocks]
        assert batch.seq_lens.tolist() == [position + 1] * 2
        for request in requests:
            request.token_ids.append(position)
            request.num_computed_tokens += 1


def test_a_pending_token_is_told_by_its_row_of_the_logits() -> None:
    known, pending = (request_with(prompt=2, generated=0, computed=2, row=row) for row in (0, 1))
    known.token_ids.append(5)
    pending.pending_row = 3
    for request in (known, pending):
        request.state = RequestState.DECODE
    batch = staging_for().build([(known, 1), (pending, 1)], [])
    assert (batch.input_ids.tolist(), batch.has_pending_tokens) == ([5, -1 - 3], True)
    prompt = request_with(prompt=3, generated=0, computed=0, row=2)
    mixed = staging_for().build([(pending, 1), (prompt, 3)], [])
    assert (mixed.input_ids.tolist(), mixed.has_pending_tokens) == ([-1 - 3, 0, 1, 2], True)
    assert mixed.logits_indices.tolist() == [0, 3]


@pytest.mark.covers("replicas/ranks-on-gpus")
@pytest.mark.parametrize("shapes", [None, PaddedShapes(max_seqs=4, max_tokens=16)], ids=["exact", "padded"])
def test_another_rank_stages_the_same_step_from_bytes(shapes: PaddedShapes | None) -> None:
    own, other = (staging_for(num_groups=2, has_metadata=True, padded_shapes=shapes) for _ in range(2))
    decodes = [request_with(prompt=2, generated=1, computed=2, row=row) for row in (3, 1, 0)]
    for request in decodes:
        request.state = RequestState.DECODE
    decodes[1].pending_row = 2
    decodes[1].token_ids.pop()
    prompt = request_with(prompt=7, generated=0, computed=2, row=2)
    edits = [(row, TableEdit(group, 0, [7 + row + group, 2 + row])) for row in (3, 1, 0, 2) for group in (0, 1)]
    steps: tuple[tuple[list[tuple[Request, int]], list[tuple[int, TableEdit]]], ...] = (
        ([(decodes[0], 1), (prompt, 5)], edits),
        ([(each, 1) for each in decodes], []),
        ([(each, 1) for each in decodes], [(3, TableEdit(1, 2, [30]))]),  # the same requests: not all is written again
        ([(each, 1) for each in decodes[:2]], []),
    )
    for items, edited in steps:
        batch = own.build(items, edited)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(batch.stage()), type=StagedStep)
        taken = other.take(sent)
        assert taken.shape == batch.shape
        assert (taken.num_tokens, taken.total_len) == (batch.num_tokens, batch.total_len)
        assert taken.has_pending_tokens == batch.has_pending_tokens
        for name in ("input_ids", "position_ids", "logits_indices", "query_start", "seq_lens", "is_prefill"):
            assert torch.equal(getattr(taken, name), getattr(batch, name)), name
        assert batch.metadata is not None
        assert taken.metadata is not None
        pairs = [*zip(taken.slots, batch.slots, strict=True)]
        pairs += zip(taken.gather_block_tables(), batch.gather_block_tables(), strict=True)
        for found, expected in zip(taken.metadata, batch.metadata, strict=True):
            names = [field.name for field in dataclasses.fields(expected)]
            pairs += [(getattr(found, name), getattr(expected, name)) for name in names]
        assert all(torch.equal(found, expected) for found, expected in pairs)


ADAPTERS = RowPart(
    name="adapters", num_columns=1, padding=-7, read=lambda row: (10 + row.arrival,), is_in=lambda _: True
)


@pytest.mark.parametrize("generated", [0, 4], ids=["prompts", "decodes"])
def test_an_optional_part_arrives_by_its_declaration_padded_and_at_other_ranks(generated: int) -> None:
    rows = [request_with(prompt=3, generated=generated, computed=generated + 2, row=row) for row in (2, 0, 1, 3)]
    for row in rows:
        row.state = RequestState.DECODE if generated else RequestState.PREFILL
        row.state_move = StateMove(row.row, 4 + row.row)
    shapes = PaddedShapes(max_seqs=4, max_tokens=16, max_prompt_tokens=16)
    how: dict[str, Any] = {"has_metadata": True, "row_parts": (STATES, ADAPTERS)}
    buffers, other_rank = staging_for(padded_shapes=shapes, **how), staging_for(**how)
    buffers.build([(row, 1) for row in rows], [])
    batch = buffers.build([(row, 1) for row in rows[:3]], [])
    staged = msgspec.msgpack.decode(msgspec.msgpack.encode(batch.stage()), type=StagedStep)
    for found in (batch, other_rank.take(staged), buffers.inputs(batch.shape)):
        (adapters,), (read, write) = found.row_parts[ADAPTERS], found.row_parts[STATES]
        assert adapters.tolist() == [12, 10, 11, -7]
        assert (read.tolist(), write.tolist()) == ([2, 0, 1, -1], [6, 4, 5, -1])
        assert found.row_starts is not None
        assert found.row_starts.tolist() == [0, 1, 2, 3, 3]


def test_a_batch_of_padding_alone_has_padding_in_its_optional_parts() -> None:
    shape = BatchShape(4, 4, is_decode_only=True)
    buffers = staging_for(row_parts=(ADAPTERS,), has_metadata=True)
    buffers.stage_idle(shape)
    (adapters,) = buffers.inputs(shape).row_parts[ADAPTERS]
    assert adapters.tolist() == [-7] * 4
