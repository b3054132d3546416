"""What a step's inputs say of its rows."""

from typing import Any

import pytest
import torch

from infer_cache import TableEdit
from infer_engine.core.request import Request
from infer_engine.ipc.messages import Submit
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.protocol import SamplingParams


def request_with(*, prompt: int, generated: int, computed: int, row: int) -> Request:
    submitted = Submit(
        request_id=str(row), prompt_token_ids=list(range(prompt)), params=SamplingParams(), max_tokens=9, seed=0
    )
    request = Request(submitted, arrival=row)
    request.token_ids += range(generated)
    request.num_computed_tokens = computed
    request.row = row
    return request


def staging_for(*, num_groups: int = 1) -> InputBuffers:
    return InputBuffers(
        max_tokens=16, max_seqs=4, max_seq_len=16, block_size=4, num_groups=num_groups, device=torch.device("cpu")
    )


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


DECODES: list[dict[str, Any]] = [
    {"prompt": 5, "generated": 1, "computed": 5},
    {"prompt": 2, "generated": 9, "computed": 10},
]


def is_decode_only(*of_requests: dict[str, Any], num_tokens: int = 1, num_found: int = 0) -> bool:
    """Whether the requests' next token makes a step of decodes; the last one has other `num_tokens` and found ones."""
    requests = [request_with(**facts, row=row) for row, facts in enumerate(of_requests)]
    requests[-1].num_reused_tokens = num_found
    counts = [1] * (len(requests) - 1) + [num_tokens]
    return staging_for().build(list(zip(requests, counts, strict=True)), []).is_decode_only


def test_a_token_of_each_of_some_sequences_beyond_their_prompts_is_a_step_of_decodes() -> None:
    assert is_decode_only(*DECODES)
    assert is_decode_only(DECODES[0])
    assert is_decode_only(*DECODES, num_found=8)  # tokens before it were


@pytest.mark.parametrize(
    ("last", "more"),
    [
        ({"prompt": 5, "generated": 0, "computed": 4}, {}),  # a prompt's last token
        ({"prompt": 1, "generated": 0, "computed": 0}, {}),  # all of a prompt
        ({"prompt": 5, "generated": 0, "computed": 2}, {}),  # one token of a prompt, and more to come
        ({"prompt": 5, "generated": 3, "computed": 5}, {}),  # computed again: the next token is known
        ({"prompt": 5, "generated": 2, "computed": 5}, {"num_tokens": 2}),  # computed again, up to the last
        ({"prompt": 5, "generated": 3, "computed": 7}, {"num_found": 8}),  # its keys are there: stored nowhere
    ],
)
def test_a_step_with_anything_but_a_stored_decode_whose_token_is_due_is_none(
    last: dict[str, Any], more: dict[str, int]
) -> None:
    assert not is_decode_only(*DECODES, last, **more)
    assert not is_decode_only(last, **more)
