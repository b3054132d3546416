"""`EngineConfig`: what to run and how. Knows values and the conflicts between them; knows no model and no device."""

import re
from dataclasses import dataclass
from typing import Literal

DType = Literal["auto", "bfloat16", "float16", "float32"]
LoadFormat = Literal["auto", "dummy"]

DEFAULT_PREFILL_CHUNK_SIZE = 512

_BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to run and how. `None` and `auto` mean: decided from the model, the device and the other values.

    Attributes:
        model: Folder of a checkpoint, or a Hub id. Left out: the bundled demo model.
        dtype: Type of weights and activations. `auto`: the checkpoint's own.
        device: `auto`, `cuda`, `cuda:N` or `cpu`. `auto`: a GPU if there is one.
        load_format: `auto` reads safetensors; `dummy` makes random weights from `config.json` alone.
        max_seq_len: Prompt plus generated tokens of one request. Left out: the model's maximum, cut to what fits the KV
            cache.
        max_batch_size: Requests computed in one step. Left out: 256 on a GPU, 32 on a CPU.
        max_num_batched_tokens: Tokens computed in one step. Left out: 8192 on a GPU, 2048 on a CPU.
        max_waiting_requests: Requests that may wait in the queue; more are refused.
        seed: Base seed of requests that bring none of their own. Left out: drawn at start.
        block_size: Tokens of one KV block. Left out: 64, or 32 where head_dim is 256.
        kv_cache_memory: Memory for keys and values, such as `4GiB`. Left out: what `gpu_memory_utilization` leaves, or
            a quarter of the free memory on a CPU.
        num_gpu_blocks: KV blocks in all, whatever the device. Left out: `kv_cache_memory` worth.
        gpu_memory_utilization: Share of a GPU's memory for weights, activations and KV cache together.
        kv_reserve: Share of the free KV tokens that admission leaves for running requests to grow into.
        use_chunked_prefill: Split long prompts over several steps. Left out: on.
        prefill_chunk_size: Tokens of one prompt computed in one step, when chunked.
        max_prefill_chunks_per_step: Prompts prefilled in one step. Left out: as many as fit.

    Raises:
        ValueError: a value is not allowed, or two that were set contradict each other; the message names the field, the
            value and what is allowed.
    """

    model: str | None = None
    dtype: DType = "auto"
    device: str = "auto"
    load_format: LoadFormat = "auto"
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_waiting_requests: int = 1024
    seed: int | None = None
    block_size: int | None = None
    kv_cache_memory: int | str | None = None
    num_gpu_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_reserve: float = 0.2
    use_chunked_prefill: bool | None = None
    prefill_chunk_size: int = DEFAULT_PREFILL_CHUNK_SIZE
    max_prefill_chunks_per_step: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no model or device could make sense of."""
        _one_of("dtype", self.dtype, ("auto", "bfloat16", "float16", "float32"))
        _one_of("load_format", self.load_format, ("auto", "dummy"))
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise _invalid("device", self.device, "`auto`, `cpu`, `cuda` or `cuda:N`")
        if self.model is not None and not self.model.strip():
            raise _invalid("model", self.model, "a folder or a Hub id")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise _invalid(name, value, "a whole number of at least 1")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise _invalid("seed", self.seed, "a signed 64-bit integer")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise _invalid("gpu_memory_utilization", self.gpu_memory_utilization, "in (0, 1]")
        if not 0 <= self.kv_reserve < 1:
            raise _invalid("kv_reserve", self.kv_reserve, "in [0, 1)")
        if self.kv_cache_memory is not None:
            parse_bytes("kv_cache_memory", self.kv_cache_memory)
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        if self.num_gpu_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError(
                f"`num_gpu_blocks` is {self.num_gpu_blocks} and `kv_cache_memory` is {self.kv_cache_memory}, and each "
                "sets the size of the KV cache; set one of them."
            )
        if self.use_chunked_prefill is False and self.prefill_chunk_size != DEFAULT_PREFILL_CHUNK_SIZE:
            raise ValueError(
                f"`prefill_chunk_size` is {self.prefill_chunk_size} but `use_chunked_prefill` is false and prompts are "
                "computed whole; leave one of them out."
            )
        # The default is not the user's word: a chunk is cut to what a step computes anyway.
        chunk_was_set = self.prefill_chunk_size != DEFAULT_PREFILL_CHUNK_SIZE
        step_size = self.max_num_batched_tokens
        if chunk_was_set and step_size is not None and self.prefill_chunk_size > step_size:
            raise ValueError(
                f"`prefill_chunk_size` is {self.prefill_chunk_size} but a step computes at most "
                f"`max_num_batched_tokens` = {step_size} tokens; lower the one or raise the other."
            )

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache_memory` in bytes, or None where it is left to the engine."""
        return None if self.kv_cache_memory is None else parse_bytes("kv_cache_memory", self.kv_cache_memory)


_COUNTS = (
    "max_seq_len",
    "max_batch_size",
    "max_num_batched_tokens",
    "max_waiting_requests",
    "block_size",
    "num_gpu_blocks",
    "prefill_chunk_size",
    "max_prefill_chunks_per_step",
)


def parse_bytes(name: str, value: int | str) -> int:
    """Return `value` in bytes: a number of bytes, or one with a unit such as `512MiB`, `4GiB`, `1.5GB`.

    Raises:
        ValueError: not a positive amount of memory; the message names the field `name`.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = match and _BYTE_UNITS.get(match[2].upper())
    if not match or not unit or float(match[1]) * unit < 1:
        raise _invalid(name, value, "a positive number of bytes, or one with a unit such as `512MiB` or `4GiB`")
    return int(float(match[1]) * unit)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _invalid(name, value, "one of " + ", ".join(f"`{choice}`" for choice in allowed))


def _invalid(name: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"`{name}` is {value!r}; it must be {allowed}.")
