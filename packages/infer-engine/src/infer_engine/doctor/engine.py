"""The part `engine`: a whole engine over a small model with the user's heads and dtype, against plain PyTorch.

Prompts shorter and longer than a chunk, a block and a window run together, and a second time for their cached
prefixes. `DEVICE_CHECKS` has the checks of engines on one kind of device alone.
"""

import gc
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from infer_engine.assembly.core import CoreParts, build_core
from infer_engine.assembly.runner import measure_loaded_step_bytes
from infer_engine.doctor.memory_rate import examine_memory_rate
from infer_engine.doctor.model_ops import ops_of
from infer_engine.doctor.model_reading import read_model
from infer_engine.doctor.oracle import Oracle, compare, save_small_model, small_config
from infer_engine.doctor.reporter import Reporter, describe, size
from infer_engine.messages import Submit
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.model_runner.runner import RecordingRunner
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.sizing import choose_block_size, resolve_device
from infer_kernels.cpu import library
from infer_kernels.cpu.calls import DTYPES
from infer_models import CheckpointError, ModelConfig
from infer_models.config.checkpoint_fields import read_config_fields

PROMPT_LENGTHS = (1, 5, 63, 64, 65, 130, 257)
CHUNK_SIZE = 96
NUM_TOKENS = 8
"""Tokens of an answer."""
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
MAX_STEPS = 2000
SLACK_BYTES, SLACK_SHARE = 32 * 2**20, 0.1
"""Memory that a step may take beyond the measured bytes: in bytes, and as a share of these."""

Answers = Mapping[str, tuple[list[int], Tensor]]
"""Tokens of prompt and answer, and the logits [tokens, vocab] of the answer's, by name."""


class RequestFailedError(RuntimeError):
    """A request of the doctor failed, or the engine went on without an end."""


class RecordedEngine:
    """An engine core in this process, as `build_core` builds it, that also returns the logits of every token.

    Attributes:
        cuda_graphs: result of capturing steps as CUDA graphs; None if there was nothing to capture.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Load the model of `config`.

        Raises:
            ValueError: the configuration asks for more than there is.
        """
        self._logits: dict[tuple[str, int], Tensor] = {}
        built = build_core(config, wrap_parts=self._record, warns_of_unread_fields=False)
        self._core = built.core
        self.cuda_graphs = built.info.cuda_graphs

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts, so far, whose keys and values were in the cache."""
        return self._core.stats.num_cached_tokens

    def answer(self, prompts: Mapping[str, list[int]], *, num_tokens: int) -> dict[str, tuple[list[int], Tensor]]:
        """Answer all prompts together, greedily; a name may be used once.

        Returns:
            By name, the tokens of prompt and answer, and the logits [num_tokens, vocab] of the answer's.

        Raises:
            RequestFailedError: a request failed.
        """
        token_ids = {name: list(prompt) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            self._core.handle(
                Submit(request_id=name, prompt_token_ids=prompt, max_tokens=num_tokens, seed=0, params=GREEDY)
            )
        for _ in range(MAX_STEPS):
            if not self._core.has_work:
                break
            for output in self._core.step().outputs:
                if output.error is not None:
                    raise RequestFailedError(f"the request of {output.request_id} tokens failed: {output.error}")
                token_ids[output.request_id] += output.token_ids
        else:
            raise RequestFailedError(f"the requests did not end in {MAX_STEPS} steps")
        return {
            name: (
                ids,
                torch.stack([self._logits.pop((name, length)) for length in range(len(prompts[name]), len(ids))]),
            )
            for name, ids in token_ids.items()
        }

    def _record(self, parts: CoreParts) -> CoreParts:
        return replace(parts, runner=RecordingRunner(parts.runner, self._logits))


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """The small model and its engine, as the checks of this part get them.

    Attributes:
        reporter: takes the findings.
        config: architecture of the model.
        values: fields of the engine's `EngineConfig`.
        engine: the engine, built of `values`.
        prompts: token ids by name.
        device: device of the engine.
        dtype: dtype of weights and activations.
    """

    reporter: Reporter
    config: ModelConfig
    values: Mapping[str, Any]
    engine: RecordedEngine
    prompts: Mapping[str, list[int]]
    device: torch.device
    dtype: torch.dtype
    _rounds: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's configuration."""
        return EngineConfig(**self.values)

    def answer_again(self) -> Answers:
        """Answer all prompts together; after the first time, with the prefixes that are cached.

        Raises:
            RequestFailedError: a request failed.
        """
        round_number = next(self._rounds)
        prompts = {f"{name} ({round_number})": prompt for name, prompt in self.prompts.items()}
        answers = self.engine.answer(prompts, num_tokens=NUM_TOKENS)
        return dict(zip(self.prompts, answers.values(), strict=True))


def examine_engine(reporter: Reporter) -> None:
    """Report whether an engine on the device of the request answers as plain PyTorch does."""
    try:
        read = read_model(reporter)
        device = resolve_device(reporter.request.device)
    except (CheckpointError, ValueError) as error:
        reporter.skip("engine", str(error))
        reporter.finish("not checked")
        return
    fields = read_config_fields(read.folder).as_dict()
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


def examine_captured_step(small: SmallModel, answers: Answers) -> None:
    """Report whether `answers`, of an engine with defaults, have the bits of one that captures nothing."""
    if library(DTYPES[small.dtype]) is None:
        small.reporter.skip("captured step", "without C++ kernels no step is captured")
        return
    plain = RecordedEngine(replace(small.engine_config, use_cpu_graphs=False))
    expected = plain.answer(small.prompts, num_tokens=NUM_TOKENS)
    differing = [name for name, (_, logits) in answers.items() if not torch.equal(logits, expected[name][1])]
    if differing:
        found = f"logits of the prompts of {', '.join(differing)} differ from those of kernels called one by one"
        fix = "start with `--no-use-cpu-graphs`, and please report it"
        small.reporter.fail("captured step", found, fix=fix)
    else:
        small.reporter.ok("captured step", "the bits of kernels called one by one")


def examine_cuda_graphs(small: SmallModel) -> None:
    """Report the result of capturing steps, which an engine compares with their kernels at its start."""
    found = small.engine.cuda_graphs
    if found is None or "not used" in found:
        small.reporter.warn(
            "CUDA graphs", found or "steps were not captured", fix="steps are computed kernel by kernel; report it"
        )
    else:
        small.reporter.ok("CUDA graphs", found)


def examine_step_memory(small: SmallModel) -> None:
    """Report whether steps take no more GPU memory than an engine measures before it sizes its KV cache."""
    measured = _measured_step_bytes(small.engine_config, small.device)
    torch.cuda.reset_peak_memory_stats(small.device)
    before = torch.cuda.memory_allocated(small.device)
    small.answer_again()
    torch.cuda.synchronize(small.device)
    judge_step_memory(small, measured=measured, real=torch.cuda.max_memory_allocated(small.device) - before)


def judge_step_memory(small: SmallModel, *, measured: int, real: int) -> None:
    """Report whether `real` bytes are no surprise after `measured` ones."""
    found = f"the largest step takes {size(real)}, and {size(measured)} were measured at the start"
    if real > measured * (1 + SLACK_SHARE) + SLACK_BYTES:
        fix = "start with a lower `--gpu-memory-utilization`, and please report it"
        small.reporter.warn("step memory", found, fix=fix)
    else:
        small.reporter.ok("step memory", found)


def _measured_step_bytes(config: EngineConfig, device: torch.device) -> int:
    """Measure as an engine does when it starts."""
    assert config.model is not None
    loaded = load_rank(config, Path(config.model), device=device)
    measured = measure_loaded_step_bytes(loaded)
    del loaded
    gc.collect()
    torch.cuda.empty_cache()
    return measured


def examine_rate_of_memory(small: SmallModel) -> None:
    """Report how fast the GPU's memory is when it is copied, and when the model's attention reads it."""
    block_size = choose_block_size(small.engine_config, head_dim=small.config.head_dim)
    ops = ops_of(small.config, dtype=small.dtype, block_size=block_size)
    examine_memory_rate(small.reporter, ops, small.device)


DEVICE_CHECKS: Mapping[str, Sequence[Callable[[SmallModel, Answers], None]]] = MappingProxyType(
    {
        "cuda": (
            lambda small, _: examine_cuda_graphs(small),
            lambda small, _: examine_step_memory(small),
            lambda small, _: examine_rate_of_memory(small),
        ),
        "cpu": (examine_captured_step,),
    }
)
"""Checks of an engine that has answered, by its device's type; each gets the model and its first answers."""
