"""`EngineConfig`: which model to run and how. Checks values and the conflicts between them."""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, get_args

from infer_engine.protocol.structured_outputs import Whitespace
from infer_engine.protocol.values import number, one_of, optional, refusal, switch, text, whole_number

DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
LoadFormat = Literal["auto", "dummy"]
BatchingMode = Literal["static", "continuous"]
SchedulerPolicy = Literal["fcfs", "prefill_first", "decode_round_robin", "priority"]
KVCacheDType = Literal["auto", "fp8_e4m3", "int8"]
KVCacheBackend = Literal["contiguous", "paged"]
RoutingPolicy = Literal["prefix", "least_loaded", "random"]
ToolCallFormatChoice = Literal["auto", "hermes", "llama3_json", "mistral", "mistral_args", "json"]
GenerationConfigChoice = Literal["auto", "none", "vllm"]
ReasoningFormatChoice = Literal["auto", "none", "think", "mistral", "seed", "kimi", "exaone", "cohere", "harmony"]
KVCacheBackendChoice = Literal["auto", "contiguous", "paged"]

DEFAULT_BATCH_WAIT_TIMEOUT_S = 0.05

MAX_REPLICAS = 64
MAX_RANKS = 64
MAX_TIMEOUT_S = 365 * 24 * 3600
"""A year: a longer time is a typing error, and may overflow a clock."""

_BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model to run and how. `None` and `auto` are decided from the model, the device and the other values.

    A value that is left out never conflicts with another: an optional feature is on if the other values allow it. The
    properties return the decisions that depend on the configuration alone.

    Attributes:
        model: Folder of a checkpoint, or a Hub id. Left out: the bundled demo model.
        dtype: Type of weights and activations. `auto`: the checkpoint's own.
        quantization: How weights are kept. `auto`: as the checkpoint has them, quantized or not. `none`: dequantized.
            `int8`, `int4`, and on a GPU `fp8`: quantized while they are read.
        device: `auto`, `cuda`, `cuda:N` or `cpu`. `auto`: a GPU if there is one.
        load_format: `auto` reads safetensors; `dummy` makes random weights from `config.json` alone.
        max_seq_len: Prompt plus generated tokens of one request. Left out: the model's maximum, cut to what fits the KV
            cache.
        max_batch_size: Requests computed in one step. Left out: 8 with static batching or the contiguous cache, else
            256 on a GPU, 32 on a CPU.
        max_num_batched_tokens: Tokens computed in one step, or in each of its two passes with `prefill_first`. Left
            out: 8192 on a GPU, 2048 on a CPU.
        max_waiting_requests: Requests that may wait in the queue; more are refused.
        seed: Base seed of requests without a seed of their own. Left out: drawn at start.
        batching_mode: `continuous` lets requests join and leave at every step; `static` forms a batch and runs it until
            all its requests have finished.
        scheduler_policy: What goes first. `fcfs`: first come, first served. `prefill_first`: admitted prompts before
            decodes of the same step. `decode_round_robin`: decodes take turns. `priority`: the request's own priority,
            then arrival. All but `fcfs` need continuous batching.
        batch_wait_timeout_s: Seconds that a forming batch waits to fill, with static batching.
        kv_cache_backend: `paged` gives blocks on demand and needs continuous batching; `contiguous` gives every request
            of the batch a fixed slot of `max_seq_len` tokens. `auto`: paged, with static batching contiguous.
        kv_cache_dtype: Type of keys and values in the cache. `auto`: that of the activations. In eight bits the cache
            holds twice the tokens, a little less exactly: `fp8_e4m3` on a GPU from Ada on, `int8` on a CPU.
        block_size: Tokens of one KV block, paged only. Left out: 64, or 32 where head_dim is 256.
        kv_cache_memory: Most memory for keys and values of one rank, such as `4GiB`. Left out: what
            `gpu_memory_utilization` leaves; on a CPU a quarter of the free memory, divided among all copies and ranks.
        num_kv_blocks: Number of KV blocks, on any device, paged only. Left out: as many as fit `kv_cache_memory`, at
            most those of `max_batch_size` requests of `max_seq_len` tokens.
        num_gpu_blocks: Another name of `num_kv_blocks`. Left out: none.
        gpu_memory_utilization: Share of a GPU's memory for weights, activations and KV cache together.
        kv_reserve: Share of the free KV tokens that admission leaves for running requests to grow into.
        use_chunked_prefill: Split long prompts over several steps; needs continuous batching. Left out: on if the other
            values allow it.
        prefill_chunk_size: Tokens of one prompt computed in one step, when chunked. Left out: 2048 on a GPU, 512 on a
            CPU, and no more than `max_num_batched_tokens`.
        max_prefill_chunks_per_step: Prompts prefilled in one step, chunked or whole, in every mode. Left out: as many
            as fit.
        max_prefill_tokens_beside_decodes: Prompt tokens computed in one pass with decodes, when chunked: the fewer, the
            shorter the time between two tokens, and the later the first ones. Prompts take turns. Left out:
            48 on a CPU, 96 if it computes in bf16 with AMX, 480 on a GPU, or up to 2272 of small models.
        use_prefix_caching: Reuse the KV blocks of prefixes that prompts share; needs the paged cache and chunked
            prefill. Left out: on if the other values allow it.
        use_async_scheduling: Schedule the next step while the device computes this one. Gains nothing on a CPU; needs
            one pass a step. Left out: on with a GPU if the other values allow it.
        use_cuda_graphs: On a GPU, capture steps at the start and replay each that computes what its kernels do. Left
            out: on.
        use_cpu_graphs: On a CPU with C++ kernels, capture a step once and replay it. Left out: on, unless there are
            several ranks.
        use_fused_products: On a GPU, compute each dense layer of at most 16 tokens in one launch with the norm, gate or
            addition beside it. Left out: on, unless `batch_invariant` is.
        batch_invariant: Results do not depend, bit for bit, on the other requests of the batch. Costs speed, but not on
            a CPU with C++ kernels, where it always holds.
        step_timeout_s: Seconds after which a step counts as stuck, and the engine as dead.
        data_parallel_size: Copies of the model, each in a process of its own, on a GPU or a set of processors of its
            own. Requests are spread over them; those of a copy that is lost go on in another one. Sizes such as
            `max_batch_size` and `num_kv_blocks` are those of each copy.
        tensor_parallel_size: Devices that compute each copy together, each with a part of every large weight and of the
            KV cache, in a process of its own. On a CPU, where it is slower, for tests.
        routing_policy: Which copy a request goes to. `prefix`: the one that has most of its prompt in the cache, unless
            that is busier; `least_loaded`; `random`, to compare with.
        tool_call_format: How the model writes tool calls. `auto`: as its chat template asks for them.
        reasoning_format: How the model writes what it thinks before it answers; `none`: it does not, or it is to be
            part of the text. `auto`: as its chat template has it.
        generation_config: Where a request's sampling values come from that it leaves out. `auto`: from the model's
            `generation_config.json`; `none`, or `vllm` as vLLM spells it: fixed ones.
        structured_output_whitespace: Whitespace in JSON of requests that ask for it and not for its whitespace.
            `compact`: at most one blank, after a comma or a colon; `any`: line breaks and indentation too.

    Raises:
        ValueError: a value is not allowed, or two that were set conflict; the message names the field, the value and
            what is allowed.
    """

    model: str | None = None
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    device: str = "auto"
    load_format: LoadFormat = "auto"
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_waiting_requests: int = 2048
    seed: int | None = None
    batching_mode: BatchingMode = "continuous"
    scheduler_policy: SchedulerPolicy = "fcfs"
    batch_wait_timeout_s: float = DEFAULT_BATCH_WAIT_TIMEOUT_S
    kv_cache_backend: KVCacheBackendChoice = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    block_size: int | None = None
    kv_cache_memory: int | str | None = None
    num_kv_blocks: int | None = None
    num_gpu_blocks: int | None = field(default=None, compare=False)
    gpu_memory_utilization: float = 0.9
    kv_reserve: float = 0.2
    use_chunked_prefill: bool | None = None
    prefill_chunk_size: int | None = None
    max_prefill_chunks_per_step: int | None = None
    max_prefill_tokens_beside_decodes: int | None = None
    use_prefix_caching: bool | None = None
    use_async_scheduling: bool | None = None
    use_cuda_graphs: bool | None = None
    use_cpu_graphs: bool | None = None
    use_fused_products: bool | None = None
    batch_invariant: bool = False
    step_timeout_s: float = 300.0
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    routing_policy: RoutingPolicy = "prefix"
    tool_call_format: ToolCallFormatChoice = "auto"
    reasoning_format: ReasoningFormatChoice = "auto"
    generation_config: GenerationConfigChoice = "auto"
    structured_output_whitespace: Whitespace = "compact"

    def __post_init__(self) -> None:
        """Check each value, then the conflicts between them."""
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        self._take_other_name()
        self._check_batching_mode()
        self._check_prefix_caching()
        self._check_chunk_size()
        self._check_cache_size()
        self._check_cache_dtype()
        self._check_async_scheduling()
        self._check_graphs_and_products()
        self._check_replicas()
        self._check_ranks()

    @property
    def resolved_kv_cache_backend(self) -> KVCacheBackend:
        """The backend of the KV cache: `kv_cache_backend`, or the one that `auto` means with the other values."""
        if self.kv_cache_backend == "auto":
            return "contiguous" if self.batching_mode == "static" else "paged"
        return self.kv_cache_backend

    @property
    def chunks_prefill(self) -> bool:
        """Whether long prompts are split over several steps."""
        return self.batching_mode == "continuous" and self.use_chunked_prefill is not False

    @property
    def caches_prefixes(self) -> bool:
        """Whether KV blocks of shared prefixes are reused."""
        possible = self.resolved_kv_cache_backend == "paged" and self.chunks_prefill
        return possible and self.use_prefix_caching is not False

    def schedules_ahead(self, *, on_gpu: bool) -> bool:
        """Return whether the next step is scheduled while the device computes this one."""
        possible = self.scheduler_policy != "prefill_first"
        return possible and (on_gpu if self.use_async_scheduling is None else self.use_async_scheduling)

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache_memory` in bytes, or None if it was left out."""
        return None if self.kv_cache_memory is None else parse_bytes("kv_cache_memory", self.kv_cache_memory)

    @property
    def field_of_num_blocks(self) -> str:
        """The field that `num_kv_blocks` was given as, for messages: its own name or `num_gpu_blocks`."""
        return "num_kv_blocks" if self.num_gpu_blocks is None else "num_gpu_blocks"

    def _take_other_name(self) -> None:
        if self.num_gpu_blocks is None:
            return
        if self.num_kv_blocks not in (None, self.num_gpu_blocks):
            why = "and both name the blocks of the KV cache"
            raise self._conflict("num_gpu_blocks", "num_kv_blocks", why=why, fix="leave one of them out")
        object.__setattr__(self, "num_kv_blocks", self.num_gpu_blocks)

    def _check_batching_mode(self) -> None:
        if self.batching_mode == "continuous":
            if self.batch_wait_timeout_s != DEFAULT_BATCH_WAIT_TIMEOUT_S:
                raise self._conflict(
                    "batch_wait_timeout_s",
                    "batching_mode",
                    why="and no batch waits to fill",
                    fix="leave `batch_wait_timeout_s` out or set `batching_mode` to `static`",
                )
            return
        needs_continuous = {
            "scheduler_policy": self.scheduler_policy != "fcfs",
            "kv_cache_backend": self.kv_cache_backend == "paged",
            "use_chunked_prefill": self.use_chunked_prefill is True,
            "use_prefix_caching": self.use_prefix_caching is True,
        }
        for name in (name for name, is_needed in needs_continuous.items() if is_needed):
            raise self._conflict(
                name,
                "batching_mode",
                why="and a batch runs as it was formed",
                fix=f"leave `{name}` out or set `batching_mode` to `continuous`",
            )

    def _check_prefix_caching(self) -> None:
        if self.use_prefix_caching is not True:
            return
        if self.kv_cache_backend == "contiguous":
            raise self._conflict(
                "use_prefix_caching",
                "kv_cache_backend",
                why="and slots share no blocks",
                fix="leave `use_prefix_caching` out or set `kv_cache_backend` to `paged`",
            )
        if self.use_chunked_prefill is False:
            raise self._conflict(
                "use_prefix_caching",
                "use_chunked_prefill",
                why="and a prompt that is computed whole skips none of it",
                fix="leave one of them out",
            )

    def _check_chunk_size(self) -> None:
        if self.prefill_chunk_size is None:
            return  # a default conflicts with nothing: a chunk is cut to the tokens of a step
        if not self.chunks_prefill:
            raise self._conflict(
                "prefill_chunk_size",
                "batching_mode" if self.batching_mode == "static" else "use_chunked_prefill",
                why="and prompts are computed whole",
                fix="leave one of them out",
            )
        if self.max_num_batched_tokens is not None and self.prefill_chunk_size > self.max_num_batched_tokens:
            raise self._conflict(
                "prefill_chunk_size",
                "max_num_batched_tokens",
                why="and no step computes more",
                fix="lower the one or raise the other",
            )

    def _check_cache_size(self) -> None:
        both = self.num_kv_blocks is not None and self.kv_cache_memory is not None
        if both and self.resolved_kv_cache_backend == "paged":
            raise self._conflict(
                self.field_of_num_blocks,
                "kv_cache_memory",
                why="and each sets the size of the KV cache",
                fix="leave one of them out",
            )

    def _check_cache_dtype(self) -> None:
        on_cpu, on_gpu = self.device == "cpu", self.device.startswith("cuda")
        if (self.kv_cache_dtype == "fp8_e4m3" and on_cpu) or (self.kv_cache_dtype == "int8" and on_gpu):
            other = "int8" if on_cpu else "fp8_e4m3"
            raise self._conflict(
                "kv_cache_dtype",
                "device",
                why="which has no kernels for it",
                fix=f"set `kv_cache_dtype` to `{other}` or leave it out",
            )

    def _check_async_scheduling(self) -> None:
        if self.use_async_scheduling and self.scheduler_policy == "prefill_first":
            raise self._conflict(
                "use_async_scheduling",
                "scheduler_policy",
                why="and the second pass of a step needs the results of the first",
                fix="leave one of them out",
            )

    def _check_graphs_and_products(self) -> None:
        for name, other in (("use_cpu_graphs", "cuda"), ("use_cuda_graphs", "cpu"), ("use_fused_products", "cpu")):
            if getattr(self, name) and self.device.startswith(other):
                why = f"and nothing runs on a {'GPU' if other == 'cpu' else 'CPU'}"
                raise self._conflict(name, "device", why=why, fix=f"leave `{name}` out")
        if self.use_fused_products and self.batch_invariant:
            why = "and sums of larger steps have another order"
            raise self._conflict("use_fused_products", "batch_invariant", why=why, fix="leave one of them out")

    def _check_replicas(self) -> None:
        if self.data_parallel_size > 1 and ":" in self.device:
            raise self._conflict(
                "data_parallel_size", "device", why="and each copy needs a GPU of its own", fix="set `device` to `cuda`"
            )

    def _check_ranks(self) -> None:
        if self.tensor_parallel_size == 1:
            return
        if self.use_cpu_graphs:
            raise self._conflict(
                "use_cpu_graphs",
                "tensor_parallel_size",
                why="and ranks communicate inside a step",
                fix="leave `use_cpu_graphs` out",
            )
        if self.batch_invariant:
            raise self._conflict(
                "batch_invariant",
                "tensor_parallel_size",
                why="and the order of sums over ranks depends on the batch",
                fix="leave one of them out",
            )

    def _conflict(self, name: str, other: str, *, why: str, fix: str) -> ValueError:
        return ValueError(
            f"`{name}` is {getattr(self, name)!r} but `{other}` is {getattr(self, other)!r} {why}; {fix}."
        )


def parse_bytes(name: str, value: object) -> int:
    """Return `value` in bytes: a number of bytes, or one with a unit such as `512MiB`, `4GiB`, `1.5GB`.

    Raises:
        ValueError: not a positive amount of memory; the message names the field `name`.
    """
    num_bytes = _whole_bytes(value)
    if num_bytes < 1:
        raise refusal(name, value, "a positive number of bytes, or one with a unit such as `512MiB` or `4GiB`")
    return num_bytes


def _whole_bytes(value: object) -> int:
    """Return `value` in bytes, or 0 if it is not an amount of memory."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # The number of digits is limited, because converting very many of them takes very long.
    pattern = r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*"
    match = re.fullmatch(pattern, value) if isinstance(value, str) else None
    return int(Fraction(match[1]) * _BYTE_UNITS.get(match[2].upper(), 0)) if match else 0


_COUNT = whole_number("a whole number of at least 1", lambda value: value >= 1)
_TIMEOUT = f"a finite number of seconds, %s and at most {MAX_TIMEOUT_S}"

_CHECKS = {
    "model": optional(text(r".*\S.*", "a folder or a Hub id, as a string")),
    "dtype": one_of(*get_args(DType)),
    "quantization": one_of(*get_args(Quantization)),
    "device": text(r"auto|cpu|cuda(:[0-9]{1,9})?", "`auto`, `cpu`, `cuda` or `cuda:N`"),
    "load_format": one_of(*get_args(LoadFormat)),
    "max_seq_len": optional(_COUNT),
    "max_batch_size": optional(_COUNT),
    "max_num_batched_tokens": optional(_COUNT),
    "max_waiting_requests": _COUNT,
    "seed": optional(whole_number("a signed 64-bit integer", lambda value: -(2**63) <= value < 2**63)),
    "batching_mode": one_of(*get_args(BatchingMode)),
    "scheduler_policy": one_of(*get_args(SchedulerPolicy)),
    "batch_wait_timeout_s": number(_TIMEOUT % "at least 0", lambda value: 0 <= value <= MAX_TIMEOUT_S),
    "kv_cache_backend": one_of(*get_args(KVCacheBackendChoice)),
    "kv_cache_dtype": one_of(*get_args(KVCacheDType)),
    "block_size": optional(_COUNT),
    "kv_cache_memory": optional(parse_bytes),
    "num_kv_blocks": optional(_COUNT),
    "num_gpu_blocks": optional(_COUNT),
    "gpu_memory_utilization": number("a number in (0, 1]", lambda value: 0 < value <= 1),
    "kv_reserve": number("a number in [0, 1)", lambda value: 0 <= value < 1),
    "use_chunked_prefill": optional(switch()),
    "prefill_chunk_size": optional(_COUNT),
    "max_prefill_chunks_per_step": optional(_COUNT),
    "max_prefill_tokens_beside_decodes": optional(_COUNT),
    "use_prefix_caching": optional(switch()),
    "use_async_scheduling": optional(switch()),
    "use_cuda_graphs": optional(switch()),
    "use_cpu_graphs": optional(switch()),
    "use_fused_products": optional(switch()),
    "batch_invariant": switch(),
    "step_timeout_s": number(_TIMEOUT % "above 0", lambda value: 0 < value <= MAX_TIMEOUT_S),
    "data_parallel_size": whole_number(
        f"a whole number from 1 to {MAX_REPLICAS}", lambda value: 1 <= value <= MAX_REPLICAS
    ),
    "tensor_parallel_size": whole_number(
        f"a whole number from 1 to {MAX_RANKS}", lambda value: 1 <= value <= MAX_RANKS
    ),
    "routing_policy": one_of(*get_args(RoutingPolicy)),
    "tool_call_format": one_of(*get_args(ToolCallFormatChoice)),
    "reasoning_format": one_of(*get_args(ReasoningFormatChoice)),
    "generation_config": one_of(*get_args(GenerationConfigChoice)),
    "structured_output_whitespace": one_of(*get_args(Whitespace)),
}
