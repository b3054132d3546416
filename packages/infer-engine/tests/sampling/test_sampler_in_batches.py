"""Any mix of parameters in a batch gives each request what it gets alone, step after step, in whatever rows."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.request import Request
from infer_engine.sampling.sampler import Sampler
from infer_engine.step_runner import SamplerOutput
from infer_proofs.engine.sampling import running_request

VOCAB = 16
MAX_ROWS = 6

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 0.5, 3.0]),
        "top_k": st.integers(1, 2 * VOCAB),
        "top_p": st.sampled_from([0.3, 0.95]),
        "min_p": st.sampled_from([0.05, 0.5]),
        "repetition_penalty": st.sampled_from([0.5, 1.5]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 1.2]),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 0.5, 4.0])),
        "min_tokens": st.integers(0, 4),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 20),
    },
)


def sampler() -> Sampler:
    return Sampler(vocab_size=VOCAB, max_rows=MAX_ROWS, eos_token_ids=frozenset({0}), device=torch.device("cpu"))


def model(request: Request, dtype: torch.dtype) -> torch.Tensor:
    """Logits that follow from a request's tokens."""
    generator = torch.Generator().manual_seed(sum((i + 1) * token for i, token in enumerate(request.token_ids)))
    return torch.randn(VOCAB, generator=generator).to(dtype)


def step(one: Sampler, requests: list[Request], dtype: torch.dtype) -> SamplerOutput:
    return one.sample(torch.stack([model(request, dtype) for request in requests]), requests)


def make(number: int, params: dict[str, Any]) -> Request:
    prompt = [number, 2 * number]
    return running_request(number, prompt=prompt, seed=7 * number, request_id=f"request {number}", **params)


@pytest.mark.covers("requests/seed-in-any-batch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(st.lists(PARAMS, min_size=1, max_size=MAX_ROWS), st.data())
def test_company_changes_nothing(dtype: torch.dtype, kinds: list[dict[str, Any]], data: st.DataObject) -> None:
    together = sampler()
    running = [make(number, params) for number, params in enumerate(kinds)]
    alone = [(sampler(), make(number, params)) for number, params in enumerate(kinds)]
    for _ in range(4):
        rows = data.draw(st.permutations(range(MAX_ROWS)), label="rows")
        for request, row in zip(running, rows, strict=False):
            request.row = row
        taking_part = data.draw(st.lists(st.sampled_from(range(len(kinds))), unique=True), label="taking part")
        if not taking_part:
            continue
        choices = step(together, [running[number] for number in taking_part], dtype)
        for index, number in enumerate(taking_part):
            single, request = alone[number]
            expected = step(single, [request], dtype)
            assert choices.token_ids[index] == expected.token_ids[0]
            assert choices.logprobs.get(index) == expected.logprobs.get(0)
            for each in (running[number], request):
                each.token_ids.append(expected.token_ids[0])
