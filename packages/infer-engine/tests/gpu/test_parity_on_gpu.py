"""An engine on a GPU against plain PyTorch: tokens and logits in every configuration that matters, bits with one flag.

The models are tiny, with heads as wide as real ones and weights that bf16 holds exactly. The configurations have every
two values of modes, backends, policies and block sizes that can meet. On a CPU three of them are answered, which shows
that the checks are sound. Drafts, keys in eight bits and quantized weights are cases of their own, on a CPU too.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol, get_args

import pytest
import torch
from torch import Tensor

from infer_engine import EngineConfig
from infer_engine.doctor.oracle import LOGIT_TOLERANCES, Oracle, compare, save_small_model
from infer_engine.protocol import EngineStats
from infer_engine.protocol.config import SchedulerPolicy
from infer_engine.protocol.config.model import Quantization
from infer_proofs.engine.models import ModelEngine, sound_tokens
from infer_proofs.kernels.devices import ON_GPU
from infer_proofs.models import LLAMA3_SCALING
from infer_proofs.models.checkpoints import save_mtp_of_pairs

Values = dict[str, Any]
"""Fields of `EngineConfig`."""
Prompts = Mapping[str, Sequence[int]]

VOCAB_SIZE, MAX_SEQ_LEN, WINDOW, NUM_TOKENS = 512, 192, 24, 16
_COMMON: Values = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, Values] = {
    "llama": _COMMON
    | {
        "model_type": "llama",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_parameters": LLAMA3_SCALING,
    },
    "qwen3": _COMMON
    | {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_theta": 1000000.0,
    },
    "gemma3": _COMMON
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
    },
    "gemma4": _COMMON
    | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "sliding_window": WINDOW,
    },
    "qwen3_5": _COMMON
    | {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    },
    "lfm2": _COMMON
    | {
        "model_type": "lfm2",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
    "granite": _COMMON
    | {
        "model_type": "granitemoehybrid",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 192,
        "position_embedding_type": "nope",
        "attention_multiplier": 128**-0.5,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "mamba_n_heads": 4,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_chunk_size": 256,
    },
}
"""The `config.json` of a tiny model of each family."""
FIELDS: dict[str, tuple[Any, ...]] = {
    "batching_mode": ("continuous", "static"),
    "kv_cache_backend": ("paged", "contiguous"),
    "use_chunked_prefill": (True, False),
    "use_prefix_caching": (True, False),
    "scheduler_policy": get_args(SchedulerPolicy),
    "batch_invariant": (False, True),
    "block_size": (None, 16, 5),
    "use_cuda_graphs": (None, False),
    "use_fused_products": (None, False),
    "use_async_scheduling": (None, False),
}
"""What is configured, defaults first; on a GPU, None stands for on. Blocks of 16 tokens are smaller than the kernels'
tiles, 5 divides nothing."""
SMALL_CHUNKS: Values = {"prefill_chunk_size": 32, "max_num_batched_tokens": 72}
PREEMPTING: Values = {
    "use_prefix_caching": False,
    "batch_invariant": True,
    "block_size": 4,
    "num_kv_blocks": 64,
    "kv_reserve": 0.0,
}
"""Too few blocks for all requests."""


def allowed_configurations() -> Iterator[Values]:
    """Yield every combination of `FIELDS` that `EngineConfig` takes, defaults first."""
    for combined in product(*FIELDS.values()):
        values = dict(zip(FIELDS, combined, strict=True))
        if values["kv_cache_backend"] == "contiguous" and values["block_size"] is not None:
            continue  # slots have no blocks
        try:
            EngineConfig(**values)
        except ValueError:
            continue
        yield values


def covering(configurations: Sequence[Values]) -> list[Values]:
    """Return a few of `configurations`, the first among them, with every pair of values that any of them has."""
    chosen = [configurations[0]]
    missing = {pair for values in configurations for pair in combinations(values.items(), 2)}
    while missing := missing.difference(combinations(chosen[-1].items(), 2)):
        chosen.append(max(configurations, key=lambda each: len(missing.intersection(combinations(each.items(), 2)))))
    return chosen


def changed_fields(values: Values) -> Values:
    """Return the fields that are no defaults, and those that make chunks small where prompts are chunked."""
    changed = {name: value for name, value in values.items() if value != FIELDS[name][0]}
    return changed | (SMALL_CHUNKS if values["use_chunked_prefill"] else {})


CONFIGURATIONS = [changed_fields(values) for values in covering(list(allowed_configurations()))]
CONFIGURATIONS.insert(1, PREEMPTING)
NUM_ON_CPU = 3
QUICK = ("gemma3", "float32")


def cases() -> Iterator[Any]:
    """Yield family, dtype, device and configuration of each test."""
    for family, dtype in product(FAMILIES, ("float32", "bfloat16")):
        for number, config in enumerate(CONFIGURATIONS):
            name = f"{family}-{dtype}-{number}"
            yield pytest.param(family, dtype, "cuda", config, marks=ON_GPU, id=f"{name}-cuda")
            if number < NUM_ON_CPU:
                marks = () if (family, dtype) == QUICK else pytest.mark.full
                yield pytest.param(family, dtype, "cpu", config, marks=marks, id=f"{name}-cpu")


def random_prompt(length: int, *, seed: int = 0) -> list[int]:
    chosen = Random(1000 * length + seed)  # noqa: S311 - prompts, no secrets
    return [chosen.randrange(3, VOCAB_SIZE) for _ in range(length)]


LONG = random_prompt(130)
WAVES: list[Prompts] = [
    {"long": LONG},
    {
        "long again": LONG,
        "shared prefix": [*LONG[:100], *random_prompt(17, seed=1)],
        **{str(length): random_prompt(length) for length in (1, 17, 5, WINDOW, 64, 97, 30, 2, 40)},
    },
]
"""The second wave is sent when the first is answered: with prefix caching it finds a whole prompt, and a part of one.
Lengths end before, at and behind the ends of blocks, chunks and the window."""


DRAFTED_WAVES: list[Prompts] = [
    {"long": LONG},
    {
        "long again": LONG,
        "repeated": 5 * random_prompt(9),
        **{str(length): random_prompt(length) for length in (17, 5)},
    },
]
"""So few that steps get drafts: of the answer that was given before, of repetitions, and such as are wrong."""


class OwnCase(NamedTuple):
    """A case beside the configurations.

    Attributes:
        family: one of `FAMILIES`.
        config: fields of `EngineConfig`.
        on_cpu: fields that are others there.
        quantization: format of the weights that right answers are computed of, dequantized.
        mtp: the layer that drafts: none, one that is mostly wrong, or one that is right, of a model of pairs.
    """

    family: str
    config: Values = {}  # noqa: RUF012 - read only
    on_cpu: Values = {}  # noqa: RUF012 - read only
    quantization: Quantization = "auto"
    mtp: str = ""


SUFFIX, NGRAM, MTP = ({"speculative_config": f'{{"method": "{method}"}}'} for method in ("suffix", "ngram", "mtp"))
EXACT_CASES = {
    "suffix": OwnCase("llama", SUFFIX),
    "suffix, a model with states": OwnCase("lfm2", SUFFIX),
    "ngram, windows": OwnCase("gemma3", NGRAM),
    "mtp": OwnCase("qwen3_5", MTP, mtp="random"),
    "mtp that is right": OwnCase("qwen3_5", MTP, mtp="pairs"),
}
"""Cases that compute what they would compute without, in any dtype."""
FP8_KEYS, INT8_KEYS = {"kv_cache_dtype": "fp8_e4m3"}, {"kv_cache_dtype": "int8"}
FP8, INT8 = {"quantization": "fp8"}, {"quantization": "int8"}
ROUNDED_CASES = {
    "fp8 keys, windows": OwnCase("gemma3", FP8_KEYS, on_cpu=INT8_KEYS),
    "fp8 keys, heads of 512": OwnCase("gemma4", FP8_KEYS, on_cpu=INT8_KEYS),
    "fp8 keys and drafts": OwnCase("qwen3", FP8_KEYS | SUFFIX, on_cpu=INT8_KEYS),
    "int8 weights": OwnCase("llama", INT8, quantization="int8"),
    "int4 weights": OwnCase("llama", {"quantization": "int4"}, quantization="int4"),
    "int4 weights, heads of 512": OwnCase("gemma4", {"quantization": "int4"}, quantization="int4"),
    "int8 weights and mtp": OwnCase("qwen3_5", MTP | INT8, quantization="int8", mtp="random"),
    "fp8 weights": OwnCase("gemma3", FP8, on_cpu=INT8),
    "fp8 weights, heads of 512": OwnCase("gemma4", FP8, on_cpu=INT8),
}
"""Cases that round keys, inputs or, to fp8, weights, in bf16."""
ROUNDED_MARGIN, ROUNDED_TOLERANCE = 0.5, 1.0
"""Margin and tolerance of these, in standard deviations of logits.

In fp32, keys rounded to fp8 made a difference of 0.55, and one of 0.18 between the two best of a token that changed;
weights and inputs rounded to fp8 0.52 and 0.25. On a CPU int4 weights in bf16, whose inputs are rounded to int8, made
0.39.
"""
QUICK_OWN = ("suffix", "float32")


def own_cases() -> Iterator[Any]:
    """Yield the case, the dtype and the device of each test."""
    dtypes = dict.fromkeys(EXACT_CASES, ("float32", "bfloat16")) | dict.fromkeys(ROUNDED_CASES, ("bfloat16",))
    for name, case in (EXACT_CASES | ROUNDED_CASES).items():
        for dtype in dtypes[name]:
            yield pytest.param(case, dtype, "cuda", marks=ON_GPU, id=f"{name}-{dtype}-cuda")
            marks = () if (name, dtype) == QUICK_OWN else pytest.mark.full
            yield pytest.param(case, dtype, "cpu", marks=marks, id=f"{name}-{dtype}-cpu")


class Answer(NamedTuple):
    """The tokens of an answer, and on the host the logits [tokens, vocab] that each was chosen from."""

    token_ids: list[int]
    logits: Tensor


class Checkpoint:
    """A tiny model, what it must answer, and what an engine on a device answers to each request alone."""

    def __init__(self, folder: Path, *, quantization: Quantization = "auto") -> None:
        self._folder = folder
        self._oracle = Oracle(folder, max_seq_len=MAX_SEQ_LEN, quantization=quantization)
        self.alone = cache(self._alone)

    def answer(self, waves: Sequence[Prompts], **config: Any) -> tuple[dict[str, Answer], EngineStats]:
        """Answer the prompts of each of `waves` together, one wave after the other."""
        # A fixed size, not a share of what is free: other tests compute on the device at the same time.
        memory = {} if "num_kv_blocks" in config else {"kv_cache_memory": "64MiB"}
        engine = ModelEngine(self._folder, **{"max_seq_len": MAX_SEQ_LEN, **memory, **config})
        found = {}
        for wave in waves:
            for name, prompt in wave.items():
                engine.submit(name, prompt, max_tokens=NUM_TOKENS)
            for name, token_ids in sound_tokens(engine.run()).items():
                rows = [engine.logits.pop((name, len(wave[name]) + index)) for index in range(len(token_ids))]
                found[name] = Answer(token_ids, torch.stack(rows).cpu())
        stats, cuda_graphs = engine.core.stats, engine.info.cuda_graphs or ""
        del engine
        gc.collect()  # captured steps hold memory of the device
        assert "not used" not in cuda_graphs, cuda_graphs
        return found, stats

    def right_logits(self, name: str, token_ids: list[int]) -> Tensor:
        """Return the logits [tokens, vocab] that must precede each token of an answer."""
        prompt = next(wave[name] for wave in WAVES + DRAFTED_WAVES if name in wave)
        return self._oracle.logits([*prompt, *token_ids[:-1]])[-len(token_ids) :]

    def _alone(self, device: str, dtype: str) -> dict[str, Answer]:
        waves = [{name: prompt} for wave in WAVES for name, prompt in wave.items()]
        how = {"device": device, "dtype": dtype, "use_prefix_caching": False, "batch_invariant": True}
        return self.answer(waves, **how)[0]


class CheckpointOf(Protocol):
    """Gives a family's checkpoint."""

    def __call__(self, family: str, *, quantization: Quantization = "auto", mtp: str = "") -> Checkpoint: ...


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> CheckpointOf:
    """Return a function that gives a family's checkpoint."""

    @cache
    def checkpoint_of(family: str, *, quantization: Quantization = "auto", mtp: str = "") -> Checkpoint:
        folder = tmp_path_factory.mktemp(family)
        fields = FAMILIES[family] | {"dtype": "bfloat16"}
        save_small_model(fields, folder, dtype=torch.bfloat16, with_mtp=bool(mtp))
        if mtp == "pairs":
            save_mtp_of_pairs(folder)
        return Checkpoint(folder, quantization=quantization)

    return checkpoint_of


@pytest.mark.parametrize(("family", "dtype", "device", "config"), list(cases()))
def test_tokens_and_logits_are_those_of_plain_pytorch(
    family: str, dtype: str, device: str, config: Values, checkpoint_of: CheckpointOf
) -> None:
    checkpoint = checkpoint_of(family)
    is_short = "num_kv_blocks" in config
    found, stats = checkpoint.answer(
        [{**WAVES[0], **WAVES[1]}] if is_short else WAVES, device=device, dtype=dtype, **config
    )
    assert bool(stats.num_preemptions) >= is_short
    assert bool(stats.num_cached_tokens) >= EngineConfig(**config).caches_prefixes
    pairs = [(own.logits, checkpoint.right_logits(name, own.token_ids)) for name, own in found.items()]
    agreement = compare(pairs, dtype=getattr(torch, dtype))
    assert agreement.is_right(getattr(torch, dtype)), agreement
    assert all(own.token_ids == own.logits.argmax(dim=-1).tolist() for own in found.values())
    if config.get("batch_invariant"):
        alone = checkpoint.alone(device, dtype)
        assert [name for name, own in found.items() if not torch.equal(own.logits, alone[name].logits)] == []


@pytest.mark.parametrize(("case", "dtype", "device"), list(own_cases()))
def test_drafts_keys_in_eight_bits_and_quantized_weights_answer_as_plain_pytorch(
    case: OwnCase, dtype: str, device: str, checkpoint_of: CheckpointOf
) -> None:
    checkpoint = checkpoint_of(case.family, quantization=case.quantization, mtp=case.mtp)
    config, is_exact = case.config | (case.on_cpu if device == "cpu" else {}), case in EXACT_CASES.values()
    drafts = "speculative_config" in config
    found, stats = checkpoint.answer(DRAFTED_WAVES if drafts else WAVES, device=device, dtype=dtype, **config)
    pairs = [(own.logits, checkpoint.right_logits(name, own.token_ids)) for name, own in found.items()]
    agreement = compare(pairs, dtype=getattr(torch, dtype), margin=None if is_exact else ROUNDED_MARGIN)
    assert agreement.num_decided_same == agreement.num_decided > 0, agreement
    assert agreement.logit_error <= (LOGIT_TOLERANCES[getattr(torch, dtype)] if is_exact else ROUNDED_TOLERANCE)
    assert bool(stats.num_draft_tokens) >= drafts
    assert bool(stats.num_accepted_tokens) >= (drafts and case.mtp != "random")


def test_every_two_values_that_can_meet_do_so() -> None:
    def pairs(configurations: Sequence[Values]) -> set[Any]:
        return {pair for each in configurations for pair in combinations(each.items(), 2)}

    allowed = list(allowed_configurations())
    chosen = covering(allowed)
    assert pairs(chosen) == pairs(allowed)
    assert len(chosen) < len(allowed) / 4


@pytest.mark.parametrize(
    ("family", "mistake"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
        pytest.param("llama", {"rms_norm_eps": 1e-3}, marks=pytest.mark.full),
        pytest.param("qwen3", {"rope_theta": 500000.0}, marks=pytest.mark.full),
        ("gemma3", {"sliding_window": WINDOW - 1}),
        pytest.param("gemma3", {"query_pre_attn_scalar": 250}, marks=pytest.mark.full),
        pytest.param("gemma3", {"rope_local_base_freq": 11000.0}, marks=pytest.mark.full),
    ],
)
def test_a_small_mistake_shows(family: str, mistake: Values, checkpoint_of: CheckpointOf, tmp_path: Path) -> None:
    save_small_model(FAMILIES[family] | {"dtype": "bfloat16"} | mistake, tmp_path, dtype=torch.bfloat16)
    found, _ = Checkpoint(tmp_path).answer(WAVES, device="cpu", dtype="float32")
    pairs = [(own.logits, checkpoint_of(family).right_logits(name, own.token_ids)) for name, own in found.items()]
    assert not compare(pairs, dtype=torch.float32).is_right(torch.float32)
