"""Engines over tiny real models, for tests of an engine's tokens and logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from infer_cache import PagedKVCacheManager, describe_leaks
from infer_engine.assembly.core import CoreParts, build_core
from infer_engine.messages import Abort, StepResult, Submit, TokenOutput
from infer_engine.model_runner.runner import RecordingRunner
from infer_engine.protocol import EngineConfig, SamplingParams, TokenLogprob
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.models import LONGROPE_SCALING, TINY_FAMILIES, save_tiny, save_tiny_tokenizer

if TYPE_CHECKING:
    from infer_engine.scheduling import KVCacheManager
    from infer_engine.step_runner import StepRunner

VOCAB_SIZE = 320
MAX_SEQ_LEN = 128
GREEDY = SamplingParams(temperature=0, ignore_eos=True)

ATTENTION_FAMILIES = ("llama", "qwen3", "gemma3")
"""Three of `ALL_FAMILIES`: the plain one, one with QK-norm, one with sliding windows, of 8 tokens, in some layers."""
STATE_FAMILIES = ("lfm2", "qwen3_5")
"""Two of `ALL_FAMILIES` whose layers have states: the last inputs of convolutions, and matrices."""
FAMILIES = (*ATTENTION_FAMILIES, "qwen3_5")
"""One of each kind."""
ALL_FAMILIES = tuple(TINY_FAMILIES)
"""The tiny checkpoints that `transformers` has twins of, text models inside multimodal ones among them."""
_OVERRIDES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # `transformers` chooses LongRoPE's frequencies anew at each length: here all but one token have the long ones.
        "phi3": {
            "rope_parameters": LONGROPE_SCALING | {"original_max_position_embeddings": 1, "attention_factor": 1.19}
        }
    }
)

_DEFAULTS: Mapping[str, Any] = MappingProxyType({"dtype": "float32", "max_seq_len": MAX_SEQ_LEN, "max_batch_size": 8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A checkpoint and its `transformers` model.

    Attributes:
        folder: the checkpoint, with a tokenizer.
        model: what `transformers` makes of it.
    """

    folder: Path
    model: Any


def save_servable(family: str, folder: Path, **overrides: Any) -> Any:
    """Save a tiny checkpoint and a tokenizer into `folder`; return the `transformers` twin of the checkpoint.

    Args:
        family: one of `ALL_FAMILIES`.
        folder: made if it is not there.
        **overrides: fields of `config.json`.
    """
    twin = save_tiny(family, folder, **{**_OVERRIDES.get(family, {}), **overrides})
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    twin.generation_config.eos_token_id = None
    return twin


def random_prompt(length: int, *, seed: int = 0) -> list[int]:
    """Return `length` ordinary token ids."""
    chosen = Random(1000 * length + seed)  # noqa: S311 - a test's choices
    return [chosen.randrange(3, VOCAB_SIZE) for _ in range(length)]


@torch.inference_mode()
def twin_prompt_logprobs(twin: Any, prompt: Sequence[int], num_listed: int) -> list[TokenLogprob | None]:
    """Return the log-probability of each token of `prompt` by `transformers`, with the `num_listed` most probable."""
    table = twin(torch.tensor([prompt])).logits[0].float().log_softmax(dim=-1)
    told: list[TokenLogprob | None] = [None]
    for row, token_id in zip(table, prompt[1:], strict=False):
        ordered = row.sort(descending=True, stable=True)
        best = zip(ordered.indices[:num_listed].tolist(), ordered.values[:num_listed].tolist(), strict=True)
        rank = 1 + ordered.indices.tolist().index(token_id)
        told.append(TokenLogprob(token_id=token_id, logprob=float(row[token_id]), rank=rank, top=list(best)))
    return told


@torch.inference_mode()
def greedy_tokens(twin: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return what `transformers` generates from `prompt`, greedily and whatever it generates."""
    generated = twin.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    token_ids: list[int] = generated[0, len(prompt) :].tolist()
    return token_ids


class Observer(FaultPlan):
    """A fault plan that also records what passes through an engine's parts.

    Attributes:
        logits: by (request id, tokens known), a copy of the row of logits that its next token was chosen from.
        runner: what the engine computes by, with the faults.
        kv_cache_manager: the engine's own, without any fault.
    """

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        """Let `faults` happen, and record."""
        super().__init__(faults=list(faults))
        self.logits: dict[tuple[str, int], Tensor] = {}
        self.runner: StepRunner
        self.kv_cache_manager: KVCacheManager

    def wrap_parts(self, parts: CoreParts) -> CoreParts:
        """Return `parts` with this plan's faults and a runner that records its logits."""
        self.kv_cache_manager = parts.kv_cache_manager
        wrapped = super().wrap_parts(replace(parts, runner=RecordingRunner(parts.runner, self.logits)))
        self.runner = wrapped.runner
        return wrapped


class ModelEngine:
    """A whole core over a checkpoint, as `build_core` builds it, stepped by the test.

    Attributes:
        core: the engine core.
        info: what was loaded.
        observer: records its logits and holds its KV cache manager.
        close: ends the processes of other ranks, if there are any.
    """

    def __init__(self, folder: Path, *, faults: Sequence[Fault] = (), **config: Any) -> None:
        """Load `folder`; `config` are fields of `EngineConfig`, by default fp32, 8 requests of up to 128 tokens."""
        self._num_ids = 0
        self.observer = Observer(faults)
        config = {**_DEFAULTS, **config}
        if "max_decode_slowdown" not in config:  # steps are what was submitted, whatever the clock says
            config.setdefault("max_prefill_tokens_beside_decodes", 48)
        if config.get("batching_mode") == "static":
            config["batch_wait_timeout_s"] = 0.0  # a batch is what was submitted before the step
        built = build_core(EngineConfig(model=str(folder), **config), wrap_parts=self.observer.wrap_parts)
        self.core = built.core
        self.info = built.info
        self.close = built.close

    @property
    def logits(self) -> dict[tuple[str, int], Tensor]:
        """By (request id, tokens known), the logits of its next token."""
        return self.observer.logits

    @property
    def paged_manager(self) -> PagedKVCacheManager:
        """The manager of a paged cache."""
        assert isinstance(self.observer.kv_cache_manager, PagedKVCacheManager)
        return self.observer.kv_cache_manager

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        max_tokens: int = 6,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        **more: Any,
    ) -> None:
        """Queue a request; `more` are further fields of `Submit`."""
        self.core.handle(
            Submit(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                max_tokens=max_tokens,
                seed=seed,
                params=params,
                **more,
            )
        )

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self.core.handle(Abort(request_id=request_id))

    def step(self) -> StepResult:
        """Compute one step, after which no block may be lost.

        Raises:
            AssertionError: a block is held that is in no sequence's block table.
        """
        result = self.core.step()
        leaked = self.observer.kv_cache_manager.audit()
        assert not leaked, f"leaked: {describe_leaks(leaked)}"
        return result

    def run(self, *, max_steps: int = 2000) -> dict[str, list[TokenOutput]]:
        """Step until nothing is left to do; return each request's outputs.

        Raises:
            AssertionError: there is still work after `max_steps` steps, or memory that was not released.
        """
        outputs: dict[str, list[TokenOutput]] = {}
        for _ in range(max_steps):
            if not self.core.has_work:
                assert self.core.stats.num_free_blocks == self.core.stats.num_blocks
                return outputs
            collect(self.step(), outputs)
        raise AssertionError(f"still work after {max_steps} steps")

    def complete(self, prompt: Sequence[int], **how: Any) -> list[int]:
        """Return the tokens of one request that runs alone; `how` as in `submit`.

        Raises:
            AssertionError: it failed.
        """
        request_id = self.fresh_id()
        self.submit(request_id, prompt, **how)
        return sound_tokens(self.run())[request_id]

    def fresh_id(self) -> str:
        """Return an id that no request of this core has had: a core's ids are never used twice."""
        self._num_ids += 1
        return f"request {self._num_ids}"


def sound_tokens(outputs: Mapping[str, Sequence[TokenOutput]]) -> dict[str, list[int]]:
    """Return the tokens of each request.

    Raises:
        AssertionError: one of them failed or has no end.
    """
    for request_id, of_one in outputs.items():
        assert of_one[-1].error is None, f"{request_id} failed: {of_one[-1].error}"
        assert of_one[-1].finish_reason is not None, f"{request_id} has no end"
    return {request_id: tokens_of(list(of_one)) for request_id, of_one in outputs.items()}
