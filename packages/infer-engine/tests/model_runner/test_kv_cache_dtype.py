"""A KV cache of eight bits: which device has which, how much it holds, and that answers stay those of the model."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from infer_cache import BlockHashes
from infer_engine.assembly.core import build_core
from infer_engine.model_runner.loading.kv_cache_dtype import choose_kv_cache_dtype, choose_kv_scales
from infer_engine.protocol import EngineConfig
from infer_kernels import KVScales
from infer_kernels.gpu import Gpu
from infer_models import ModelConfig
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import tokens_of
from infer_proofs.engine.models import FAMILIES, GREEDY, ModelEngine, random_prompt, save_servable

NUM_TOKENS = 12
PROMPTS = {"long": random_prompt(70), "short": random_prompt(3), "middle": random_prompt(33)}
LOGIT_TOLERANCE = 0.05
"""Root mean square of the difference of logits, in standard deviations of the logits."""
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of each family."""
    made = tmp_path_factory.mktemp(request.param)
    save_servable(request.param, made)
    return made


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama."""
    made = tmp_path_factory.mktemp("llama")
    save_servable("llama", made)
    return made


def answers(engine: ModelEngine, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the greedy tokens of all prompts, computed together."""
    for name, prompt in prompts.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS, params=GREEDY)
    return {name: tokens_of(outputs) for name, outputs in engine.run().items()}


def int8_engine(folder: Path, **config: Any) -> ModelEngine:
    return ModelEngine(folder, device="cpu", kv_cache_dtype="int8", **config)


@pytest.mark.covers("kv-cache/eight-bits")
def test_logits_over_int8_are_those_over_the_models_dtype_within_a_twentieth(folder: Path) -> None:
    exact, coded = ModelEngine(folder), int8_engine(folder)
    answers(exact, PROMPTS)
    answers(coded, PROMPTS)
    for name, prompt in PROMPTS.items():
        wanted, found = (engine.logits[name, len(prompt)].float() for engine in (exact, coded))
        error = (found - wanted).square().mean().sqrt() / wanted.std()
        assert 0 < error < LOGIT_TOLERANCE, name


def test_greedy_tokens_over_int8_are_the_same_where_no_two_are_as_probable(folder: Path) -> None:
    exact, coded = ModelEngine(folder), int8_engine(folder)
    wanted, found = answers(exact, PROMPTS), answers(coded, PROMPTS)
    compared = 0
    for name, prompt in PROMPTS.items():
        for index, (own, other) in enumerate(zip(found[name], wanted[name], strict=True)):
            logits = exact.logits[name, len(prompt) + index].float()
            first, second = logits.topk(2).values.tolist()
            if first - second < 2 * LOGIT_TOLERANCE * float(logits.std()):
                break  # from here on the texts may differ
            assert own == other, (name, index)
            compared += 1
    assert compared >= 3


def test_paged_contiguous_and_whole_prompts_give_the_same_tokens(folder: Path) -> None:
    expected = answers(int8_engine(folder), PROMPTS)
    for config in (
        {"kv_cache_backend": "contiguous"},
        {"block_size": 5, "prefill_chunk_size": 7},
        {"use_chunked_prefill": False},
        {"use_cpu_graphs": False},
        {"batching_mode": "static"},
    ):
        assert answers(int8_engine(folder, **config), PROMPTS) == expected, config


def test_a_cached_prefix_gives_the_tokens_of_a_computed_one(folder: Path) -> None:
    engine = int8_engine(folder, block_size=8)
    missed = answers(engine, {"miss": PROMPTS["long"]})["miss"]
    engine.submit("hit", PROMPTS["long"], max_tokens=NUM_TOKENS, params=GREEDY)
    outputs = engine.run()["hit"]
    assert outputs[-1].num_cached_tokens == 64
    assert tokens_of(outputs) == missed


def test_a_preempted_request_gives_the_tokens_of_an_undisturbed_one(folder: Path) -> None:
    prompts = {f"{seed}": random_prompt(20, seed=seed) for seed in range(4)}
    expected = answers(int8_engine(folder, block_size=4, num_kv_blocks=200), prompts)
    tight = int8_engine(folder, block_size=4, num_kv_blocks=26, max_seq_len=64, kv_reserve=0.0)
    assert answers(tight, prompts) == expected
    assert tight.core.stats.num_preemptions > 0


def test_a_step_that_fails_is_tried_again_over_the_same_codes(llama: Path) -> None:
    expected = answers(int8_engine(llama), PROMPTS)
    failing = int8_engine(llama, faults=[Fault(stage="forward", step=3, times=1)])
    assert answers(failing, PROMPTS) == expected


def test_eight_bits_hold_nearly_twice_the_tokens_of_bf16(llama: Path) -> None:
    head_dim = ModelConfig.from_folder(llama).head_dim
    sizes: dict[str, Any] = {"kv_cache_memory": "200KB", "dtype": "bfloat16", "block_size": 4, "max_batch_size": 64}
    blocks = {
        dtype: ModelEngine(llama, device="cpu", kv_cache_dtype=dtype, **sizes).info.num_kv_blocks
        for dtype in ("auto", "int8")
    }
    assert blocks["int8"] == pytest.approx(blocks["auto"] * 2 * head_dim / (head_dim + 4), abs=1)


@pytest.mark.parametrize(
    ("device", "dtype", "other"),
    [("cpu", "fp8_e4m3", "int8"), ("cuda", "int8", "fp8_e4m3"), ("cuda:1", "int8", "fp8_e4m3")],
)
def test_a_device_that_is_named_refuses_the_other_devices_dtype(device: str, dtype: Any, other: str) -> None:
    message = (
        f"`kv_cache_dtype` is '{dtype}' but `device` is '{device}' which has no kernels for it; set .* to `{other}`"
    )
    with pytest.raises(ValueError, match=message):
        EngineConfig(device=device, kv_cache_dtype=dtype)


def test_a_device_that_is_found_refuses_it_before_weights_are_read(llama: Path, tmp_path: Path) -> None:
    for file in llama.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"the device is cpu, which has no kernels for it; use `int8` there"):
        build_core(EngineConfig(model=str(tmp_path), kv_cache_dtype="fp8_e4m3"))


@pytest.mark.parametrize(
    ("capability", "is_served"), [((8, 0), False), ((8, 6), False), ((8, 9), True), ((9, 0), True)]
)
def test_fp8_needs_a_gpu_that_has_it(capability: tuple[int, int], *, is_served: bool) -> None:
    config = EngineConfig(kv_cache_dtype="fp8_e4m3")
    with patch("infer_engine.model_runner.loading.kv_cache_dtype.describe_gpu", return_value=Gpu(capability, 100)):
        if is_served:
            assert choose_kv_cache_dtype(config, device=CUDA, dtype=torch.bfloat16) == FP8
            return
        with pytest.raises(ValueError, match=r"compute capability 8\.[06], and FP8 needs 8\.9"):
            choose_kv_cache_dtype(config, device=CUDA, dtype=torch.bfloat16)


def test_int8_is_refused_on_a_gpu_that_is_found() -> None:
    with pytest.raises(ValueError, match=r"the device is cuda:0, which has no kernels for it; use `fp8_e4m3` there"):
        choose_kv_cache_dtype(EngineConfig(kv_cache_dtype="int8"), device=CUDA, dtype=torch.bfloat16)


def test_auto_is_the_models_dtype() -> None:
    for device in (CPU, CUDA):
        assert choose_kv_cache_dtype(EngineConfig(), device=device, dtype=torch.float16) == torch.float16


def scales_of(folder: Path, *, kv_dtype: torch.dtype = FP8, rank: int = 0, **config: Any) -> Sequence[KVScales] | None:
    return choose_kv_scales(
        EngineConfig(**config), folder, ModelConfig.from_folder(folder), kv_dtype=kv_dtype, rank=rank
    )


def test_fp8_without_scales_warns_once_and_takes_1(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    num_layers = ModelConfig.from_folder(llama).num_layers
    with caplog.at_level(logging.WARNING):
        assert scales_of(llama) == (KVScales(),) * num_layers
        assert scales_of(llama, rank=1) == (KVScales(),) * num_layers
    [record] = caplog.records
    assert f"no scales of keys and values for {num_layers} of {num_layers} layers" in record.getMessage()
    assert scales_of(llama, kv_dtype=torch.int8) is None


def test_scales_of_the_checkpoint_are_taken_by_layer(llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = {0: KVScales(keys=0.5), 1: KVScales(values=0.25)}
    num_layers = ModelConfig.from_folder(llama).num_layers
    with patch("infer_engine.model_runner.loading.kv_cache_dtype.load_kv_scales", return_value=found):
        assert scales_of(llama) == (*found.values(), *(KVScales(),) * (num_layers - 2))
    assert len(caplog.records) == (num_layers > 2)
    assert scales_of(llama, load_format="dummy") == (KVScales(),) * num_layers


@pytest.mark.covers("kv-cache/eight-bits")
@pytest.mark.parametrize(("dtype", "kv_format"), [("auto", "float32"), ("int8", "int8")])
def test_a_blocks_hash_depends_on_the_caches_dtype(llama: Path, dtype: str, kv_format: str) -> None:
    engine = ModelEngine(llama, device="cpu", kv_cache_dtype=dtype, block_size=8)
    answers(engine, {"one": PROMPTS["long"]})
    found = {
        each: engine.observer.kv_cache_manager.find(BlockHashes(8, kv_format=each).upto(PROMPTS["long"], 70), 70)
        for each in ("float32", "bfloat16", "int8")
    }
    assert {each: hit.num_tokens for each, hit in found.items()} == dict.fromkeys(found, 0) | {kv_format: 64}


def test_two_ranks_answer_as_one(llama: Path) -> None:
    expected = answers(int8_engine(llama), PROMPTS)
    ranks = int8_engine(llama, tensor_parallel_size=2)
    try:
        assert answers(ranks, PROMPTS) == expected
    finally:
        ranks.close()
