"""The part `engine`: a whole engine over a small model with the user's heads and dtype, against plain PyTorch.

Prompts shorter and longer than a chunk, a block and a window run together, and a second time for their cached
prefixes. `DEVICE_CHECKS` has what is asked of an engine on one kind of device alone.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
import torch

from infer_engine.doctor.captured_step import examine_captured_step
from infer_engine.doctor.memory_rate import examine_memory_rate
from infer_engine.doctor.model_reading import read_model
from infer_engine.doctor.oracle import Oracle, compare, save_small_model, small_config
from infer_engine.doctor.recorded_engine import RecordedEngine
from infer_engine.doctor.reporter import Reporter, describe
from infer_engine.doctor.small_model import NUM_TOKENS, Answers, SmallModel
from infer_engine.doctor.step_memory import examine_step_memory
from infer_engine.protocol import EngineConfig
from infer_engine.sizing import resolve_device
from infer_models import CheckpointError, ModelConfig

PROMPT_LENGTHS = (1, 5, 63, 64, 65, 130, 257)
CHUNK_SIZE = 96

DEVICE_CHECKS: Mapping[str, Sequence[Callable[[SmallModel, Answers], None]]] = MappingProxyType(
    {
        "cuda": (
            lambda small, _: examine_cuda_graphs(small),
            lambda small, _: examine_step_memory(small),
            lambda small, _: examine_memory_rate(small),
        ),
        "cpu": (examine_captured_step,),
    }
)
"""By the device's type, checks of an engine that has answered; each gets the model and its first answers."""


def examine_cuda_graphs(small: SmallModel) -> None:
    """Report what came of capturing steps, which an engine compares with their kernels at its start."""
    found = small.engine.cuda_graphs
    if found is None or "not used" in found:
        small.reporter.warn(
            "CUDA graphs", found or "steps were not captured", fix="steps are computed kernel by kernel; report it"
        )
    else:
        small.reporter.ok("CUDA graphs", found)


def examine_engine(reporter: Reporter) -> None:
    """Report whether an engine on the device of the request answers what it should."""
    try:
        read = read_model(reporter)
        device = resolve_device(reporter.request.device)
    except (CheckpointError, ValueError) as error:
        reporter.skip("engine", str(error))
        reporter.finish("not checked")
        return
    fields: dict[str, Any] = msgspec.json.decode((read.folder / "config.json").read_bytes())
    with tempfile.TemporaryDirectory(prefix="infer-doctor-") as made:
        folder = Path(made)
        config = save_small_model(small_config(fields, read.config), folder, dtype=read.dtype)
        reporter.details(
            small_model={
                "num_layers": config.num_layers,
                "hidden_size": config.hidden_size,
                "intermediate_size": config.intermediate_size,
                "vocab_size": config.vocab_size,
            }
        )
        try:
            _examine(reporter, folder, config, device=device, dtype=read.dtype)
        except (RuntimeError, ValueError) as error:  # of the device, of a request, of the configuration
            reporter.fail("engine", f"on {device}: {describe(error)}", fix="please report it")
    reporter.finish(f"a model of {config.num_layers} layers on {device} answers as plain PyTorch does")


def _examine(
    reporter: Reporter, folder: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype
) -> None:
    values = engine_values(folder, config, device=device, dtype=dtype)
    small = SmallModel(
        reporter=reporter,
        config=config,
        values=values,
        engine=RecordedEngine(EngineConfig(**values)),
        prompts=make_prompts(config),
        device=device,
        dtype=dtype,
    )
    answers = small.answer_again()
    oracle = Oracle(folder, max_seq_len=values["max_seq_len"])
    judge_answers(small, "tokens and logits", answers, oracle)
    judge_answers(small, "the same with cached prefixes", small.answer_again(), oracle)
    for check in DEVICE_CHECKS[device.type]:
        if reporter.seconds_left <= 0:
            reporter.unfinished("not everything was checked: no time")
            break
        check(small, answers)


def make_prompts(config: ModelConfig) -> dict[str, list[int]]:
    """Return prompts of lengths around those of tiles, blocks and chunks, by their lengths."""
    chosen = Random(0)  # noqa: S311 - prompts, no secrets
    lengths = [length for length in PROMPT_LENGTHS if length <= config.max_position_embeddings - NUM_TOKENS]
    return {f"{length} tokens": [chosen.randrange(config.vocab_size) for _ in range(length)] for length in lengths}


def engine_values(folder: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return the fields of an `EngineConfig` under which the prompts are chunked and batched."""
    return {
        "model": str(folder),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "load_format": "auto",
        "max_seq_len": min(config.max_position_embeddings, max(PROMPT_LENGTHS) + NUM_TOKENS),
        "max_batch_size": len(PROMPT_LENGTHS),
        "prefill_chunk_size": CHUNK_SIZE,
        "max_num_batched_tokens": 4 * CHUNK_SIZE,
        "kv_cache_memory": "512MiB",
    }


def judge_answers(small: SmallModel, what: str, answers: Answers, oracle: Oracle) -> None:
    """Compare the logits from which each token of `answers` was chosen with the oracle's, of the same text."""
    pairs = [(logits, oracle.logits(token_ids[:-1])[-len(logits) :]) for token_ids, logits in answers.values()]
    agreement = compare(pairs, dtype=small.dtype)
    found = (
        f"{agreement.num_decided_same} of {agreement.num_decided} tokens that rounding does not decide are right, "
        f"logits within {agreement.logit_error:.2g} standard deviations; {small.engine.num_cached_tokens} tokens were "
        "cached"
    )
    if agreement.is_right(small.dtype):
        small.reporter.ok(what, found)
    else:
        fix = "answers on this machine are wrong: please report it"
        small.reporter.fail(what, f"on {small.device}: {found}", fix=fix)
