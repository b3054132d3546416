"""The steps of the ablation, each one switch more, and the profiles that it runs with.

    static ──> + continuous ──> + paged ──> + chunked prefill ──> + prefix caching

What a step does not switch on is off by name, never by default. All steps have the same bytes for keys and values:
`SLOTS` sequences of `max_seq_len` tokens. The contiguous cache runs so many requests at once, as it does by default;
the paged one takes as many as its default batch and the same memory hold.
"""

from dataclasses import dataclass
from typing import Any

from infer_bench.client.workloads import Workload, make_workload
from infer_bench.shapes import SHAPES

WORKLOADS = ("mixed", "continuous_batching", "paged_attention", "chunked_prefill", "prefix_caching")
STEPS = {
    "static": "static",
    "continuous": "+ continuous",
    "paged": "+ paged",
    "chunked": "+ chunked prefill",
    "prefix": "+ prefix caching",
}
"""The label of each step, in order."""
LABELS = STEPS | {"capped": "paged, one whole prompt a step"}
"""And of the control: `paged` with chunked prefill's cap alone tells what of its effect is the cap's."""
SLOTS = 8
"""What the contiguous cache's memory is divided by where `max_batch_size` is left out."""
FULL_SEQ_LEN, FULL_CHUNK = 4096, 512

Options = dict[str, Any]
"""Fields of `EngineConfig` by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the ablation runs with.

    Attributes:
        name: of the profile.
        shapes: names of model shapes in bf16; each is measured by itself.
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


CPU = Profile(name="cpu", shapes=("llama-30m",), scale=1 / 2, device="cpu", num_threads=1)
"""For two slow cores: one computes, and HTTP and client have the other.

The work that arrives in a second goes with the square of the factor. With less than a half, an answer of
`continuous_batching` has ended when the next request comes, and static batching holds up no request; with much more,
`chunked_prefill` and `prefix_caching` bring more prompts than a core computes. At a half it is busy for 0.8 of the time
on the first and 0.95 on the others, and keeps up. The shape is one whose whole prompts cost much beside a decode step:
one of 640 tokens takes about five times what one of 160 does, and that twice what a decode step of 16 requests does.
"""
GPU = Profile(name="gpu", shapes=("llama-3.2-3b", "qwen3-4b", "gemma-3-1b"), scale=1.0, device="cuda")
PROFILES = {profile.name: profile for profile in (CPU, GPU)}


def server_options(profile: Profile, shape: str) -> dict[str, Options]:
    """Return all that is set of each step's configuration but for the model, and of the control's."""
    cap = {"max_prefill_chunks_per_step": 1}
    options: Options = {
        "device": profile.device,
        "seed": 0,
        "max_seq_len": profile.max_seq_len,
        "kv_cache_memory": SLOTS * profile.max_seq_len * kv_bytes_per_token(SHAPES[shape]),
        "batching_mode": "static",
        "kv_cache_backend": "contiguous",
        "use_chunked_prefill": False,
        "use_prefix_caching": False,
    }
    switches: dict[str, Options] = {
        "static": {},
        "continuous": {"batching_mode": "continuous"},
        "paged": {"kv_cache_backend": "paged"},
        "chunked": {"use_chunked_prefill": True, "prefill_chunk_size": int(FULL_CHUNK * profile.scale), **cap},
        "prefix": {"use_prefix_caching": True},
    }
    steps = {name: (options := options | switches[name]) for name in STEPS}
    return steps | {"capped": steps["paged"] | cap}


def kv_bytes_per_token(shape: dict[str, Any]) -> int:
    """Return the bytes of one token's keys and values in all layers, in bf16."""
    head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    return int(2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head_dim * 2)


def flags(options: Options) -> list[str]:
    """Return `options` as `infer-server` takes them."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def plan(profile: Profile, shape: str, name: str, *, contents: int = 0) -> Workload:
    """Return the workload `name` at the profile's size."""
    return make_workload(
        name,
        scale=profile.scale,
        rate_scale=profile.scale,
        vocab_size=SHAPES[shape]["vocab_size"],
        contents=contents,
    )
