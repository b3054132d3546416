"""Derives the number of slots for the states of sequences, beside the KV cache.

    running    one for each of `max_batch_size` sequences, so that none waits for a slot
    kept       up to `KEPT_PER_SEQUENCE` for each, if prefixes are cached: a conversation goes on from its last ones
    drafts     one for each draft token of a step, and one for the state that they go on from

Where memory is short, fewer are kept first, and then fewer sequences run at the same time.
"""

from dataclasses import dataclass

import torch

from infer_cache.states.state_slots import LEAST_SLOTS
from infer_engine.protocol import EngineConfig
from infer_engine.sizing import KVMemory
from infer_kernels.dispatch import TRITON_DEVICES

KEPT_PER_SEQUENCE = 4
"""Kept states for each sequence that may run."""

STATE_SHARE = 0.5
"""Share of the cache's memory that states take at most by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSizes:
    """The slots of states.

    Attributes:
        num_slots: slots of all sequences and of kept states; 0 for a model without states.
        bytes_per_slot: bytes of one sequence's state in all layers.
    """

    num_slots: int = 0
    bytes_per_slot: int = 0

    def beside(self, memory: KVMemory) -> KVMemory:
        """Return what states leave of `memory` for keys and values."""
        taken = self.num_slots * self.bytes_per_slot
        return KVMemory(share=max(0, memory.share - taken), free=max(0, memory.free - taken))


def choose_matrix_dtype(config: EngineConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of the matrices among states on `device`.

    Raises:
        ValueError: the device has no kernels for the one that is configured.
    """
    if config.state_cache_dtype == "float32":
        return torch.float32
    if device.type not in TRITON_DEVICES:
        raise ValueError(
            f"`state_cache_dtype` is {config.state_cache_dtype!r} but the device is {device}, which has no kernels for "
            "it; leave `state_cache_dtype` out."
        )
    return torch.bfloat16


def size_states(
    config: EngineConfig,
    *,
    bytes_per_slot: int,
    max_batch_size: int,
    max_draft_rows: int,
    memory: KVMemory,
) -> StateSizes:
    """Derive the number of slots.

    Args:
        config: the configuration.
        bytes_per_slot: bytes of one sequence's state in all layers; 0: the model has none.
        max_batch_size: most sequences that run at the same time.
        max_draft_rows: most draft tokens of a step.
        memory: bytes that keys, values and states may take together.

    Raises:
        ValueError: not even one sequence's states fit, or `state_cache_memory` is more than is free.
    """
    if not bytes_per_slot:
        return StateSizes()
    kept = KEPT_PER_SEQUENCE if config.caches_prefixes else 0
    given = config.state_cache_bytes
    if given is None:
        most = int(memory.share * STATE_SHARE) // bytes_per_slot
        for_drafts = max_draft_rows + 1 if max_draft_rows else 0
        num_slots = min(max((1 + kept) * max_batch_size + for_drafts, LEAST_SLOTS), most)
    else:
        num_slots = given // bytes_per_slot
    if num_slots < LEAST_SLOTS:
        has = f"half of the cache's memory is {int(memory.share * STATE_SHARE)}" if given is None else f"it is {given}"
        raise ValueError(
            f"`state_cache_memory` must be at least {LEAST_SLOTS * bytes_per_slot} bytes, the states that one "
            f"sequence of this model needs, but {has}."
        )
    if num_slots * bytes_per_slot > memory.free:
        raise ValueError(
            f"`state_cache_memory` is {config.state_cache_memory}, but {memory.free} bytes are free; lower it to at "
            f"most {memory.free}."
        )
    return StateSizes(num_slots=num_slots, bytes_per_slot=bytes_per_slot)
