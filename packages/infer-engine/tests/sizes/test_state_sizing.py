"""How many sequences of models with states a GPU's memory holds."""

import pytest
import torch

from infer_cache import StatePool, StateSlots
from infer_engine.model_runner.loading.state_sizing import choose_matrix_dtype, size_states
from infer_engine.protocol import EngineConfig
from infer_engine.sizing import KVMemory
from infer_models.layer_states import StateHeads, StateSpec


def delta_rules(layers: int, key_heads: int, value_heads: int) -> list[StateSpec]:
    keys, values = StateHeads(key_heads, 128), StateHeads(value_heads, 128)
    return [StateSpec(num_before=3, parts=(keys, keys, values), matrices=(value_heads, 128, 128))] * layers


@pytest.mark.parametrize(
    ("specs", "weight_gb", "gpu_gb", "num_sequences"),
    [
        (delta_rules(48, 16, 48), 55.6, 80, 53),  # Qwen3.5-27B in bf16
        (delta_rules(48, 16, 48), 28.5, 80, 141),  # in fp8
        (delta_rules(30, 16, 32), 36.0, 80, 256),  # Qwen3.5-35B-A3B in fp8: as many as run by default
        (delta_rules(36, 16, 32), 82.0, 141, 256),  # Qwen3-Next-80B in fp8, on an H200
    ],
)
def test_each_slot_is_a_sequences(specs: list[StateSpec], weight_gb: float, gpu_gb: float, num_sequences: int) -> None:
    left = int((0.9 * gpu_gb - weight_gb) * 1e9)
    sizes = size_states(
        EngineConfig(),
        bytes_per_slot=StatePool.bytes_per_slot(specs, dtype=torch.bfloat16),
        max_batch_size=256,
        max_draft_rows=0,
        memory=KVMemory(share=left, free=left),
    )
    slots = StateSlots(sizes.num_slots, keeps_states=True)
    running = 0
    while running < 256 and slots.can_open():
        slots.open(f"{running}")
        running += 1
    assert running == num_sequences
    for start in (0, 7, 8):
        moves = slots.move([(f"{each}", start, start + 1 if start else 7) for each in range(running)])
        assert len({move.write for move in moves.values()}) == running


@pytest.mark.covers("configuration/state-cache-dtype")
def test_matrices_in_bf16_are_for_a_gpu_and_for_steps_that_may_differ() -> None:
    assert choose_matrix_dtype(EngineConfig(), torch.device("cpu")) == torch.float32
    in_bf16 = EngineConfig(state_cache_dtype="bfloat16")
    assert choose_matrix_dtype(in_bf16, torch.device("cuda")) == torch.bfloat16
    with pytest.raises(ValueError, match="`state_cache_dtype` is 'bfloat16' but the device is cpu"):
        choose_matrix_dtype(in_bf16, torch.device("cpu"))
    for other in ({"device": "cpu"}, {"batch_invariant": True}):
        with pytest.raises(ValueError, match=f"`state_cache_dtype`.*`{next(iter(other))}`"):
            EngineConfig(state_cache_dtype="bfloat16", **other)
    specs = delta_rules(48, 16, 48)
    exact, rounded = (
        StatePool.bytes_per_slot(specs, dtype=torch.bfloat16, matrix_dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded == pytest.approx(0.51 * exact, rel=0.01)
