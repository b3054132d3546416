"""What a step's inputs say of its rows."""

import torch

from infer_cache import TableEdit
from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request
from infer_engine.staging import StepStaging


def request_with(*, prompt: int, generated: int, computed: int, row: int) -> Request:
    submitted = Submit(
        request_id=str(row), prompt_token_ids=list(range(prompt)), params=SamplingParams(), max_tokens=9, seed=0
    )
    request = Request(submitted, arrival=row)
    request.token_ids += range(generated)
    request.num_computed_tokens = computed
    request.row = row
    return request


def test_a_prompts_last_token_alone_is_still_prefill() -> None:
    staging = StepStaging(
        max_tokens=16, max_seqs=4, max_seq_len=16, block_size=4, num_groups=1, device=torch.device("cpu")
    )
    items = [
        (request_with(prompt=5, generated=1, computed=5, row=0), 1),  # a decode
        (request_with(prompt=5, generated=0, computed=4, row=1), 1),  # the last chunk of a prompt
        (request_with(prompt=5, generated=0, computed=0, row=2), 5),  # a whole prompt
        (request_with(prompt=2, generated=4, computed=0, row=3), 6),  # all that a preempted request had
    ]
    assert staging.build(items, []).is_prefill.tolist() == [False, True, True, True]


def test_a_token_that_was_found_is_not_stored_again() -> None:
    staging = StepStaging(
        max_tokens=16, max_seqs=4, max_seq_len=16, block_size=4, num_groups=2, device=torch.device("cpu")
    )
    found_whole = request_with(prompt=8, generated=0, computed=7, row=1)
    found_whole.num_found_tokens = 8
    found_half = request_with(prompt=6, generated=0, computed=4, row=2)
    found_half.num_found_tokens = 4
    edits = [(row, TableEdit(group, 0, [3 + row, 5 + row])) for row in (1, 2) for group in (0, 1)]
    slots = staging.build([(found_whole, 1), (found_half, 2)], edits).slots
    assert [group.tolist() for group in slots] == [[-1, 7 * 4, 7 * 4 + 1]] * 2
