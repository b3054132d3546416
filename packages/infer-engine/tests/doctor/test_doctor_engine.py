"""The doctor's part `engine`: a right engine agrees with plain PyTorch, and a wrong one does not."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infer_engine.doctor import engine
from infer_engine.doctor.engine import RecordedEngine, SmallModel, examine_engine, judge_step_memory
from infer_engine.doctor.oracle import LOGIT_TOLERANCES, MARGINS, Agreement, compare, small_config
from infer_engine.protocol import EngineConfig
from infer_engine.protocol.doctor import DoctorRequest
from infer_kernels import paged_attention
from infer_kernels.cpu import library
from infer_models import ModelConfig
from infer_proofs.engine.doctor import examined, reporter_of
from infer_proofs.engine.models import ALL_FAMILIES
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.pairwise import parametrize_each_value
from infer_proofs.models import save_tiny_nanogpt


def half_windows(q: torch.Tensor, *args: Any, window: int | None = None, **options: Any) -> torch.Tensor:
    return paged_attention(q, *args, window=20 if window is None else window, **options)


@parametrize_each_value(family=ALL_FAMILIES, dtype=["float32", "bfloat16", "float16"])
def test_an_engine_of_every_family_agrees_with_plain_pytorch(
    folder_of: Callable[[str], Path], family: str, dtype: str
) -> None:
    found = examined(examine_engine, model=str(folder_of(family)), dtype=dtype)
    assert found.named("failed") == found.named("warning") == set()
    assert found.named("ok") >= {"tokens and logits", "the same with cached prefixes"}
    if library() is not None:
        assert "captured step" in found.named("ok")


def test_a_model_with_learned_positions_agrees_too(tmp_path: Path) -> None:
    save_tiny_nanogpt(tmp_path)
    assert examined(examine_engine, model=str(tmp_path)).named("failed") == set()


@pytest.mark.covers("command-line-and-library/doctor-finds-faults")
def test_wrong_attention_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_cache.view.paged_attention", half_windows)
    found = examined(examine_engine)
    assert found.named("failed") >= {"tokens and logits", "the same with cached prefixes"}


def test_prefixes_are_found_in_the_cache_the_second_time() -> None:
    found = examined(examine_engine).findings
    assert "; 0 tokens were cached" in found["tokens and logits"].found
    assert "; 511 tokens were cached" in found["the same with cached prefixes"].found


def test_other_logits_with_cached_prefixes_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallModel, "answer_again", spoiled_after_the_first(SmallModel.answer_again))
    found = examined(examine_engine)
    assert found.named("failed") == {"the same with cached prefixes"}


def spoiled_after_the_first(right: Callable[[SmallModel], Any]) -> Callable[[SmallModel], Any]:
    calls: list[None] = []

    def answer_again(small: SmallModel) -> Any:
        calls.append(None)
        answers = right(small)
        if len(calls) == 1:
            return answers
        return {name: (ids, logits.roll(1, dims=-1)) for name, (ids, logits) in answers.items()}

    return answer_again


@needs_cpu_kernels
def test_a_captured_step_with_other_bits_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherEngine(RecordedEngine):
        """An engine whose kernels give other bits where they are called one by one."""

        def __init__(self, config: EngineConfig) -> None:
            super().__init__(config)
            self._is_plain = config.use_cpu_graphs is False

        def answer(self, prompts: Any, *, num_tokens: int) -> Any:
            answers = super().answer(prompts, num_tokens=num_tokens)
            if not self._is_plain:
                return answers
            return {name: (ids, logits.nextafter(logits + 1)) for name, (ids, logits) in answers.items()}

    monkeypatch.setattr(engine, "RecordedEngine", OtherEngine)
    found = examined(examine_engine, dtype="float32")
    assert found.named("failed") == {"captured step"}
    assert "--no-use-cpu-graphs" in found.findings["captured step"].fix


def test_an_engine_that_fails_is_a_failure_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr("infer_kernels.cpu.CapturedStep.replay", broken)
    monkeypatch.setattr("infer_cache.view.paged_attention", broken)
    found = examined(examine_engine)
    assert found.named("failed") == {"engine"}
    assert len(found.summaries) == 1


def test_the_checks_of_one_device_are_left_out_where_there_is_no_time() -> None:
    found = examined(examine_engine, seconds=0.0)
    assert found.named("warning") == {"not finished"}
    assert "captured step" not in found.findings


def test_a_model_that_cannot_be_read_is_skipped_here(tmp_path: Path) -> None:
    assert examined(examine_engine, model=str(tmp_path)).named("skipped") == {"engine"}


def test_every_kind_of_device_has_its_checks() -> None:
    assert set(engine.DEVICE_CHECKS) == {"cpu", "cuda"}


def test_a_large_model_is_made_small_and_keeps_its_heads_and_kinds_of_layers(tmp_path: Path) -> None:
    fields = {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 56,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    large = ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(small_config(fields, large)))
    small = ModelConfig.from_folder(tmp_path)
    assert (small.q_heads, small.kv_heads, small.head_dim) == (32, 16, 128)
    assert small.windows == (1024, None)
    assert (small.hidden_size, small.intermediate_size, small.vocab_size) == (1024, 2048, 4096)


def agreement(**changes: Any) -> Agreement:
    return Agreement(**{"num_tokens": 9, "num_decided": 8, "num_decided_same": 8, "logit_error": 0.0} | changes)


@pytest.mark.parametrize(
    ("changes", "is_right"),
    [
        ({}, True),
        ({"num_decided_same": 7}, False),
        ({"num_decided": 0, "num_decided_same": 0}, False),
        ({"logit_error": 0.5}, False),
        ({"logit_error": float("nan")}, False),
    ],
)
def test_agreement_needs_every_decided_token_and_close_logits(changes: dict[str, Any], *, is_right: bool) -> None:
    assert agreement(**changes).is_right(torch.bfloat16) == is_right


def test_a_token_that_rounding_decides_may_differ() -> None:
    right = torch.tensor([[5.0, 5.0001, 0.0, -3.0], [9.0, 0.0, 0.0, -3.0]])
    own = torch.tensor([[5.0001, 5.0, 0.0, -3.0], [9.0, 0.0, 0.0, -3.0]])
    found = compare([(own, right)], dtype=torch.float32)
    assert (found.num_tokens, found.num_decided, found.num_decided_same) == (2, 1, 1)
    assert MARGINS.keys() == LOGIT_TOLERANCES.keys()


def test_the_memory_of_a_step_is_what_the_device_counts_while_requests_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a GPU, on a CPU whose memory is counted by made-up functions."""
    counted: list[str] = []
    for name, result in {
        "reset_peak_memory_stats": None,
        "memory_allocated": 5 * 2**20,
        "synchronize": None,
        "max_memory_allocated": 95 * 2**20,
        "empty_cache": None,
    }.items():

        def count(*_: object, name: str = name, result: int | None = result) -> int | None:
            counted.append(name)
            return result

        monkeypatch.setattr(torch.cuda, name, count)
    monkeypatch.setattr(engine, "DEVICE_CHECKS", {"cpu": engine.DEVICE_CHECKS["cuda"][:2]})
    finding = examined(examine_engine).findings["step memory"]
    assert counted[-4:] == ["reset_peak_memory_stats", "memory_allocated", "synchronize", "max_memory_allocated"]
    assert (finding.verdict, "90.0 MiB, and 0.0 MiB were measured" in finding.found) == ("warning", True)


@pytest.mark.parametrize(("real", "verdict"), [(90, "ok"), (100, "ok"), (400, "warning")])
def test_a_step_that_takes_more_memory_than_was_measured_is_a_warning(real: int, verdict: str) -> None:
    found, reporter = reporter_of(DoctorRequest(model=None, device="cuda", dtype="auto", seconds=1.0))
    small: Any = SimpleNamespace(reporter=reporter)
    judge_step_memory(small, measured=100 * 2**20, real=real * 2**20)
    assert found.findings["step memory"].verdict == verdict
