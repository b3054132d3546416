"""After the warm-up no step compiles a kernel, and no request gets another token than without it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from infer_engine.model_runner import runner
from infer_engine.model_runner.loading import rank_loading
from infer_engine.model_runner.loading.warm_up import warm_up, warm_up_gpu, warm_up_mtp
from infer_engine.model_runner.mtp_drafter import MTPDrafter
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_kernels import resolve_token_ids
from infer_proofs.engine.models import GREEDY, MAX_SEQ_LEN, ModelEngine, random_prompt, save_servable
from infer_proofs.kernels.compiled.ahead_of_time import record_variants
from infer_proofs.models.checkpoints import save_mtp

LIMITS = SchedulerLimits(max_batch_size=24, max_num_batched_tokens=256, prefill_chunk_size=100)
VOCAB_SIZE = 320


def resolve_to_zeros(input_ids: torch.Tensor, latest_tokens: torch.Tensor) -> None:
    """Launch the kernel, which computes nothing, and let pending ids be 0."""
    resolve_token_ids(input_ids, latest_tokens)
    input_ids.clamp_(min=0)


@contextmanager
def variants_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> Iterator[tuple[ModelEngine, set[tuple[str, str]]]]:
    """Yield an engine that takes the path of a GPU, and the kernels that it would compile there.

    No kernel computes anything, so memory has to begin with values that PyTorch can index with.
    """
    with record_variants(90) as variants, monkeypatch.context() as patch:
        patch.setattr(torch, "empty", torch.zeros)
        patch.setattr(torch, "empty_like", torch.zeros_like)
        patch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
        patch.setattr(runner, "resolve_token_ids", resolve_to_zeros)
        engine = ModelEngine(
            folder,
            use_cpu_graphs=False,
            dtype="bfloat16",
            max_batch_size=LIMITS.max_batch_size,
            max_num_batched_tokens=LIMITS.max_num_batched_tokens,
            prefill_chunk_size=LIMITS.prefill_chunk_size,
            **config,
        )
        yield engine, variants


def run_anything(engine: ModelEngine, *, seed: int) -> None:
    """Let requests with any lengths and parameters come and go."""
    chosen = Random(seed)  # noqa: S311 - a test's choices
    for number in range(40):
        params = SamplingParams(
            temperature=chosen.choice([0.0, 1.0]),
            top_k=chosen.choice([None, 7]),
            top_p=chosen.choice([1.0, 0.8]),
            min_p=chosen.choice([0.0, 0.2]),
            repetition_penalty=chosen.choice([1.0, 1.2]),
            presence_penalty=chosen.choice([0.0, 0.0, 0.5]),
            logit_bias=chosen.choice([{}, {}, {5: 1.0}]),
            logprobs=chosen.choice([None, None, 0, 3]),
            prompt_logprobs=chosen.choice([None, None, 0, 2]),
            ignore_eos=True,
        )
        length = chosen.choice([1, 2, 15, 16, 17, 64, 99])
        grammar = chosen.choice([None, None, None, "start: /a+/"])
        engine.submit(
            f"{seed} {number}", random_prompt(length, seed=number), params=params, max_tokens=9, grammar=grammar
        )
        for _ in range(chosen.randrange(4)):
            engine.step()
    engine.run()


@pytest.mark.parametrize("name", ["gemma3", "llama", "qwen3"])
def test_no_step_compiles_a_kernel_after_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save_servable(name, tmp_path, head_dim=64)
    with variants_of(tmp_path, monkeypatch) as (engine, variants):
        num_steps = warm_up(engine.observer.runner, LIMITS, max_seq_len=MAX_SEQ_LEN, vocab_size=VOCAB_SIZE)
        after_warm_up = set(variants)
        assert len({kernel for kernel, _ in after_warm_up}) > 8
        assert num_steps > 30
        for seed in range(3):
            run_anything(engine, seed=seed)
        assert {kernel for kernel, _ in variants - after_warm_up} == set()


def test_no_draft_of_an_mtp_layer_compiles_a_kernel_after_the_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its keys are in the model's dtype, also where those of all other layers are in eight bits.
    monkeypatch.setattr(rank_loading, "choose_kv_cache_dtype", lambda *_, **__: torch.float8_e4m3fn)
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path, head_dim=64))
    with variants_of(tmp_path, monkeypatch, speculative_config='{"method": "mtp"}') as (engine, variants):
        layer = engine.core._speculator._draft_layer  # type: ignore[union-attr]  # noqa: SLF001 - as an engine on a GPU warms it up
        assert isinstance(layer, MTPDrafter)
        warm_up(engine.observer.runner, LIMITS, max_seq_len=MAX_SEQ_LEN, vocab_size=VOCAB_SIZE)
        of_steps = set(variants)
        warm_up_mtp(layer, LIMITS, max_seq_len=MAX_SEQ_LEN)
        after_warm_up = set(variants)
        assert of_steps < after_warm_up
        for seed, length in enumerate((1, 2, 15, 16, 17, 64, 99)):
            engine.complete(random_prompt(length, seed=seed), max_tokens=9)
        run_anything(engine, seed=3)
        assert engine.core.stats.num_drafts > 0
        assert {kernel for kernel, _ in variants - after_warm_up} == set()


def test_without_it_requests_do_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_servable("llama", tmp_path)
    with variants_of(tmp_path, monkeypatch) as (engine, variants):
        engine.complete([5, 6, 7])
        greedy = set(variants)
        engine.complete([5, 6, 7], params=SamplingParams(top_p=0.5, ignore_eos=True))
        assert greedy < variants


def test_requests_get_the_tokens_that_they_would_get_without(folder_of: Callable[[str], Path]) -> None:
    kinds: list[dict[str, Any]] = [
        {"params": GREEDY},
        {"params": SamplingParams(temperature=1.0, top_p=0.9, ignore_eos=True), "seed": 4},
        {"params": SamplingParams(repetition_penalty=1.5, frequency_penalty=1.0, logit_bias={7: 2.0}, ignore_eos=True)},
        {"params": SamplingParams(temperature=0, prompt_logprobs=2, logprobs=1, ignore_eos=True)},
    ]
    cold, warm = ModelEngine(folder_of("gemma3")), ModelEngine(folder_of("gemma3"))
    limits = SchedulerLimits(max_batch_size=8, max_num_batched_tokens=2048, prefill_chunk_size=512)
    warm_up(warm.observer.runner, limits, max_seq_len=MAX_SEQ_LEN, vocab_size=VOCAB_SIZE)
    for kind in kinds:
        prompt = random_prompt(30)
        assert warm.complete(prompt, **kind) == cold.complete(prompt, **kind)


@pytest.mark.parametrize(("device", "is_warmed"), [("cuda:1", True), ("cpu", False)])
def test_a_runner_on_a_gpu_is_warmed_up_and_the_log_says_for_how_long(
    folder_of: Callable[[str], Path], caplog: pytest.LogCaptureFixture, device: str, *, is_warmed: bool
) -> None:
    caplog.set_level("INFO")
    limits = SchedulerLimits(max_batch_size=1, max_num_batched_tokens=4)
    warm_up_gpu(
        ModelEngine(folder_of("llama")).observer.runner,
        limits,
        device=torch.device(device),
        max_seq_len=8,
        vocab_size=VOCAB_SIZE,
    )
    assert bool(re.search(r"Warmed up with \d+ steps in \d+\.\d s", caplog.text)) == is_warmed
