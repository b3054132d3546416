"""`SchedulerOptions`: what a step computes."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from infer_engine.protocol.config.option_group import OptionGroup
from infer_engine.protocol.config.speculation import NUM_TOKENS, Speculation, parse_speculation
from infer_engine.protocol.values import COUNT, MAX_TIMEOUT_S, TIMEOUT, number, one_of, optional, switch, text

BatchingMode = Literal["static", "continuous"]
SchedulerPolicy = Literal["fcfs", "prefill_first", "decode_round_robin", "priority"]

DEFAULT_BATCH_WAIT_TIMEOUT_S = 0.05
MAX_DECODE_SLOWDOWN = 1000
"""The largest `max_decode_slowdown`; nobody would wait for tokens that take longer."""


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(OptionGroup):
    """The choice of requests that a step computes, and of how many tokens of them.

    Attributes:
        max_batch_size: Requests computed in one step. Left out: 8 with static batching or the contiguous cache, else
            256 on a GPU, 32 on a CPU.
        max_num_batched_tokens: Tokens computed in one step, or in each of its two passes with `prefill_first`. Left
            out: 8192 on a GPU, 2048 on a CPU.
        max_waiting_requests: Requests that may wait in the queue; more are refused.
        batching_mode: `continuous` lets requests join and leave at every step; `static` forms a batch and runs it until
            all its requests have finished.
        scheduler_policy: What goes first. `fcfs`: first come, first served. `prefill_first`: admitted prompts before
            decodes of the same step. `decode_round_robin`: decodes take turns. `priority`: the request's own priority,
            then arrival. All but `fcfs` need continuous batching.
        batch_wait_timeout_s: Seconds that a forming batch waits to fill, with static batching.
        use_chunked_prefill: Split long prompts over several steps; needs continuous batching. Left out: on if the other
            values allow it.
        prefill_chunk_size: Tokens of one prompt computed in one step, when chunked. Left out: 2048 on a GPU, 512 on a
            CPU, and no more than `max_num_batched_tokens`.
        max_prefill_chunks_per_step: Prompts prefilled in one step, chunked or whole, in every mode. Left out: as many
            as fit.
        max_prefill_tokens_beside_decodes: Prompt tokens computed in one pass with decodes, when chunked: the fewer, the
            shorter the time between two tokens, and the later the first ones. Prompts take turns. Left out:
            480 on a GPU, or up to 2272 of small models; on a CPU as many as `max_decode_slowdown` allows.
        max_decode_slowdown: How many times as long as its decodes alone a pass may take that computes prompt tokens
            too, when chunked; how many these are follows what passes have taken, and is at least 16. Left out: 2 on a
            CPU unless `max_prefill_tokens_beside_decodes` is given; none on a GPU.
        use_async_scheduling: Schedule the next step while the device computes this one. Gains nothing on a CPU; needs
            one pass a step. Left out: on with a GPU if the other values allow it.
        speculative_config: Speculative decoding: tokens are drafted, and verified in one step. JSON as vLLM's, such as
            `{"method": "ngram", "num_speculative_tokens": 4}`, or `none`. No token changes. Left out: `suffix` on a CPU
            with C++ kernels, if the other values allow it; else `none`.
        speculative_model: A smaller model with the same tokenizer, which drafts: short for a `speculative_config` with
            the method `draft_model` and this model. Left out: none.
    """

    max_batch_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_waiting_requests: int = 2048
    batching_mode: BatchingMode = "continuous"
    scheduler_policy: SchedulerPolicy = "fcfs"
    batch_wait_timeout_s: float = DEFAULT_BATCH_WAIT_TIMEOUT_S
    use_chunked_prefill: bool | None = None
    prefill_chunk_size: int | None = None
    max_prefill_chunks_per_step: int | None = None
    max_prefill_tokens_beside_decodes: int | None = None
    max_decode_slowdown: float | None = None
    use_async_scheduling: bool | None = None
    speculative_config: str | None = None
    speculative_model: str | None = None

    CHECKS = MappingProxyType(
        {
            "max_batch_size": optional(COUNT),
            "max_num_batched_tokens": optional(COUNT),
            "max_waiting_requests": COUNT,
            "batching_mode": one_of(*get_args(BatchingMode)),
            "scheduler_policy": one_of(*get_args(SchedulerPolicy)),
            "batch_wait_timeout_s": number(TIMEOUT % "at least 0", lambda value: 0 <= value <= MAX_TIMEOUT_S),
            "use_chunked_prefill": optional(switch()),
            "prefill_chunk_size": optional(COUNT),
            "max_prefill_chunks_per_step": optional(COUNT),
            "max_prefill_tokens_beside_decodes": optional(COUNT),
            "max_decode_slowdown": optional(
                number(
                    f"a number above 1 and at most {MAX_DECODE_SLOWDOWN}",
                    lambda value: 1 < value <= MAX_DECODE_SLOWDOWN,
                )
            ),
            "use_async_scheduling": optional(switch()),
            "speculative_config": optional(parse_speculation),
            "speculative_model": optional(text(r".*\S.*", "a folder, a GGUF file or a Hub id, as a string")),
        }
    )

    def check_conflicts(self) -> None:
        """Check the values against each other."""
        if self.batching_mode == "static":
            self.need_continuous(
                scheduler_policy=self.scheduler_policy != "fcfs",
                use_chunked_prefill=self.use_chunked_prefill is True,
                **{self.speculation_field: self.speculation is not None},
            )
        elif self.batch_wait_timeout_s != DEFAULT_BATCH_WAIT_TIMEOUT_S:
            raise self.conflict(
                "batch_wait_timeout_s",
                "batching_mode",
                why="and no batch waits to fill",
                fix="leave `batch_wait_timeout_s` out or set `batching_mode` to `static`",
            )
        self._check_chunk_size()
        if self.max_decode_slowdown is not None and self.max_prefill_tokens_beside_decodes is not None:
            raise self.conflict(
                "max_decode_slowdown",
                "max_prefill_tokens_beside_decodes",
                why="and both say how many prompt tokens are computed beside decodes",
                fix="leave one of them out",
            )
        if self.use_async_scheduling and self.scheduler_policy == "prefill_first":
            raise self.conflict(
                "use_async_scheduling",
                "scheduler_policy",
                why="and the second pass of a step needs the results of the first",
                fix="leave one of them out",
            )
        if self.speculative_model is not None and self.speculative_config is not None:
            raise self.conflict(
                "speculative_model",
                "speculative_config",
                why="and both say how tokens are drafted",
                fix="leave one of them out",
            )

    def need_continuous(self, **are_needed: bool) -> None:
        """Refuse the first of these fields that is True: it needs continuous batching, and this is static."""
        for name in (name for name, is_needed in are_needed.items() if is_needed):
            raise self.conflict(
                name,
                "batching_mode",
                why="and a batch runs as it was formed",
                fix=f"leave `{name}` out or set `batching_mode` to `continuous`",
            )

    @property
    def speculation(self) -> Speculation | None:
        """The way in which tokens are to be drafted; None: not at all, or as `default_speculation` says."""
        if self.speculative_model is not None:
            return Speculation(method="draft_model", num_tokens=NUM_TOKENS["draft_model"], model=self.speculative_model)
        return None if self.speculative_config is None else parse_speculation("", self.speculative_config)

    @property
    def speculation_field(self) -> str:
        """The field that says how tokens are drafted."""
        return "speculative_config" if self.speculative_model is None else "speculative_model"

    @property
    def default_speculation(self) -> Speculation | None:
        """The way in which tokens are drafted where `speculative_config` is left out and drafts cost nothing else."""
        is_left_out = self.speculative_config is None and self.speculative_model is None
        is_free = self.batching_mode == "continuous" and not self.use_async_scheduling
        return Speculation() if is_left_out and is_free else None

    @property
    def chunks_prefill(self) -> bool:
        """Whether long prompts are split over several steps."""
        return self.batching_mode == "continuous" and self.use_chunked_prefill is not False

    def schedules_ahead(self, *, on_gpu: bool) -> bool:
        """Return whether the next step is scheduled while the device computes this one."""
        possible = self.scheduler_policy != "prefill_first"
        return possible and (on_gpu if self.use_async_scheduling is None else self.use_async_scheduling)

    def _check_chunk_size(self) -> None:
        if self.prefill_chunk_size is None:
            return  # a default conflicts with nothing: a chunk is cut to the tokens of a step
        if not self.chunks_prefill:
            raise self.conflict(
                "prefill_chunk_size",
                "batching_mode" if self.batching_mode == "static" else "use_chunked_prefill",
                why="and prompts are computed whole",
                fix="leave one of them out",
            )
        if self.max_num_batched_tokens is not None and self.prefill_chunk_size > self.max_num_batched_tokens:
            raise self.conflict(
                "prefill_chunk_size",
                "max_num_batched_tokens",
                why="and no step computes more",
                fix="lower the one or raise the other",
            )
