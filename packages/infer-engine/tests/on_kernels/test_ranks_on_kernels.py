"""Ranks as on GPUs, with Triton's kernels interpreted and gloo in NCCL's place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_proofs.engine.interpreted.engine import ANSWER_TOKENS, answer, run_interpreted

CONFIG: dict[str, Any] = {
    "dtype": "float32",
    "max_batch_size": 2,
    "max_num_batched_tokens": 12,
    "prefill_chunk_size": 8,
    "block_size": 16,
}


@pytest.mark.covers("replicas/ranks-on-gpus")
@pytest.mark.parametrize(
    "family",
    ["llama", *(pytest.param(name, marks=pytest.mark.full) for name in ("qwen3_5", "granitemoehybrid", "lfm2"))],
)
def test_two_ranks_capture_their_steps_and_answer_as_one(shallow_folder_of: Callable[[str], Path], family: str) -> None:
    folder = shallow_folder_of(family)
    as_ranks = {"tensor_parallel_size": 2, "use_cuda_graphs": None, "use_async_scheduling": True}
    [found] = run_interpreted("engine", str(folder), json.dumps(CONFIG | as_ranks))
    expected = answer(folder, CONFIG)
    assert found["tokens"] == expected["tokens"]
    assert found["num_cached_tokens"] == expected["num_cached_tokens"]
    assert "CUDA graphs: " in found["cuda_graphs"]  # with the choice of tokens
    assert "equal bits" in found["cuda_graphs"]
    # Of the requests that need no more, each decode after its first token; others take the logits.
    assert found["told"]["ChooseTokens"] == 2 * (ANSWER_TOKENS - 1)
    assert found["told"]["ComputeLogits"] > 0
    for name, logprobs in expected["logprobs"].items():
        assert found["logprobs"][name] == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.covers("replicas/ranks-on-gpus")
@pytest.mark.parametrize(
    "wrong", [pytest.param(each, marks=pytest.mark.full) for each in ("old hidden states", "old parameters of draws")]
)
def test_ranks_whose_captured_choices_are_wrong_capture_the_rest(
    shallow_folder_of: Callable[[str], Path], wrong: str
) -> None:
    [found] = run_interpreted("graphs", str(shallow_folder_of("llama")), f"{wrong}, as a rank")
    assert found["refusal"] is None
    assert found["num_used"] == found["num_captured"] > 0
    assert not found["has_choices"]


@pytest.mark.full
@pytest.mark.covers("replicas/ranks-on-gpus")
def test_a_rank_uses_no_captured_step_that_any_refuses(shallow_folder_of: Callable[[str], Path]) -> None:
    cases = {
        "nothing, as a rank": None,
        "old positions, as a rank": "computed something else",
        "writes elsewhere, as a rank": "wrote to a block that none of its sequences has",
        "refused by another rank": "another rank refuses it",
    }
    for found in run_interpreted("graphs", str(shallow_folder_of("llama")), *cases):
        reason = cases[found["sabotage"]]
        if reason is None:
            assert found["num_used"] == found["num_captured"] > 0
            assert found["refusal"] is None
            assert found["has_choices"]
        else:
            assert reason in found["refusal"], found
            assert found["num_used"] == 0
