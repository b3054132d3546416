"""The rungs of the serving ladder, and the profiles that it is climbed with. Knows flags and sizes; starts nothing.

    static ──> + continuous ──> + paged ──> + chunked prefill ──> + prefix caching

Each rung is the one before it and one switch; what is above a rung is off by name, never by default. All rungs have the
same bytes for keys and values: `SLOTS` sequences of `max_seq_len` tokens. The contiguous cache runs so many requests at
once, as it does by default; the paged one takes as many as its default batch and the same memory hold.
"""

from dataclasses import dataclass
from typing import Any

from shapes import SHAPES

SLOTS = 8
"""What the contiguous cache's memory is divided by where `max_batch_size` is left out."""
FULL_SEQ_LEN, FULL_CHUNK = 4096, 512
BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "float32": 4}

Options = dict[str, Any]
"""Fields of `EngineConfig` by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung: everything below it, and one switch.

    Attributes:
        name: short, for files and columns.
        label: for people.
        switch: what it changes of the rung before; of chunked prefill also how large the chunks are, which nothing but
            chunked prefill has a meaning for.
    """

    name: str
    label: str
    switch: Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the ladder is climbed with.

    Attributes:
        name: of the profile.
        shapes: names of model shapes, one ladder each.
        scale: the one factor on lengths of prompts and answers, `max_seq_len`, the chunk and arrivals per second.
        device: as `EngineConfig` has it.
        num_threads: that the server computes with on a CPU; None: all cores.
    """

    name: str
    shapes: tuple[str, ...]
    scale: float
    device: str
    num_threads: int | None = None

    @property
    def max_seq_len(self) -> int:
        """Tokens of the longest request."""
        return int(FULL_SEQ_LEN * self.scale)

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk."""
        return int(FULL_CHUNK * self.scale)


OFF: Options = {
    "batching_mode": "static",
    "kv_cache_backend": "contiguous",
    "use_chunked_prefill": False,
    "use_prefix_caching": False,
}

CPU = Profile(name="cpu", shapes=("llama-30m",), scale=1 / 2, device="cpu", num_threads=1)
"""For two slow cores: one computes, and front and client have the other.

The work that arrives in a second goes with the square of the factor. With less than a half, an answer of
`continuous_batching` has ended when the next request comes, and static batching holds up nobody; with much more,
`chunked_prefill` and `prefix_caching` bring more prompts than a core computes. At a half it is busy for 0.8 of the time
on the first and 0.95 on the others, and keeps up. The shape is one whose whole prompts cost much beside a decode step:
one of 640 tokens takes about five times what one of 160 does, and that twice what a decode step of 16 requests does.
Wider shapes of fewer layers had the same proportions, and a larger model takes longer without showing more.
"""

GPU = Profile(name="gpu", shapes=("llama-3.2-3b", "qwen3-4b", "gemma-3-1b"), scale=1.0, device="cuda")

PROFILES = {profile.name: profile for profile in (CPU, GPU)}


def rungs(profile: Profile) -> tuple[Rung, ...]:
    """Return the ladder from the bottom up."""
    chunks = {"prefill_chunk_size": profile.chunk_size, "max_prefill_chunks_per_step": 1}
    return (
        Rung(name="static", label="static", switch={}),
        Rung(name="continuous", label="+ continuous", switch={"batching_mode": "continuous"}),
        Rung(name="paged", label="+ paged", switch={"kv_cache_backend": "paged"}),
        Rung(name="chunked", label="+ chunked prefill", switch={"use_chunked_prefill": True, **chunks}),
        Rung(name="prefix", label="+ prefix caching", switch={"use_prefix_caching": True}),
    )


def control(profile: Profile) -> tuple[Rung, Options]:
    """Return the rung below chunked prefill with chunked prefill's cap alone: what of its effect is the cap's."""
    rung = Rung(name="capped", label="paged, one whole prompt a step", switch={"max_prefill_chunks_per_step": 1})
    return rung, options_of(profile, "paged") | rung.switch


def options_of(profile: Profile, name: str) -> Options:
    """Return the switches of rung `name` and of all below it, over everything off.

    Raises:
        ValueError: there is no such rung.
    """
    options = dict(OFF)
    for rung in rungs(profile):
        options |= rung.switch
        if rung.name == name:
            return options
    raise ValueError(f"`name` is {name!r}; it must be one of {', '.join(rung.name for rung in rungs(profile))}.")


def engine_options(profile: Profile, shape: str, switches: Options) -> Options:
    """Return all that is set of the configuration but for the model: the same for all rungs, beside `switches`."""
    return {
        "device": profile.device,
        "seed": 0,
        "max_seq_len": profile.max_seq_len,
        "kv_cache_memory": SLOTS * profile.max_seq_len * kv_bytes_per_token(SHAPES[shape]),
        **switches,
    }


def kv_bytes_per_token(shape: dict[str, Any]) -> int:
    """Return the bytes of one token's keys and values in all layers."""
    head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    numbers = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head_dim
    return int(numbers * BYTES_OF_DTYPE[shape["torch_dtype"]])


def flags(options: Options) -> list[str]:
    """Return `options` as `infer-server` takes them."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words
