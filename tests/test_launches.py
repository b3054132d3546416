"""How many kernels a layer launches on a GPU, counted without one: Triton's by its mock driver, torch's by dispatch."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from infer_cache import KVPool, PagedCacheView
from infer_kernels import KVSlots, plan_attention
from infer_models import CausalLM, load_model
from infer_proofs.kernels.compiled.ahead_of_time import LaunchLog, compile_only
from infer_proofs.models import save_tiny

BLOCK_SIZE = 64


class LaunchedOps(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts torch's operators that compute something: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        aliases = [returned.alias_info for returned in func._schema.returns]  # noqa: SLF001 - no public name
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and "empty" not in func.__name__ and func.__name__ != "detach.default":
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def launches_of_a_layer(
    save: Callable[..., Any], folder: Path, rows: list[int], *, options: dict[str, Any] | None = None, **fields: Any
) -> int:
    """Launches that one layer more takes, in a step with `rows` rows of each sequence; `options` of `load_model`."""
    counts = []
    for num_layers in (2, 3):
        save(folder, num_hidden_layers=num_layers, head_dim=64, **fields)
        model = load_model(folder, device=torch.device("cpu"), dtype=torch.bfloat16, **(options or {}))
        counts.append(launches(model, rows)[0])
    return counts[1] - counts[0]


def launches(model: CausalLM, rows: list[int], *, length: int = 70) -> tuple[int, LaunchLog]:
    """Launches of one forward pass over sequences of `length` tokens, with `rows` rows each."""
    spec = model.attention_specs[0]
    pool = KVPool(
        group_of_layer=(0,) * len(model.attention_specs),
        num_blocks=(len(rows),),
        kv_heads=spec.kv_heads,
        block_size=BLOCK_SIZE,
        head_dim=spec.head_dim,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    tokens = sum(rows)
    indices = torch.zeros(tokens, dtype=torch.int32)
    with compile_only(90) as recording, torch.inference_mode():
        plan = plan_attention(
            query_start=torch.tensor([0, *rows]).cumsum(0).int(),
            seq_lens=torch.full((len(rows),), length, dtype=torch.int32),
            block_table=torch.zeros(len(rows), 8, dtype=torch.int32),
            block_size=BLOCK_SIZE,
            device="cpu",
        )
        view = PagedCacheView(pool, slots=[KVSlots(indices, block_size=BLOCK_SIZE)], plans=[plan])
        with LaunchedOps() as ops:
            model.model(indices, indices, view)
    return len(recording.launches) + len(ops.names), recording


LAUNCHES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "phi3"), (6, 9)),
    "gemma3": (8, 9),  # norms after attention and MLP: two launches in both
    "ministral3": (9, 12),  # the queries' scale: looked up, multiplied, joined with keys and values
    "olmo3": (10, 11),  # a norm of queries and one of keys, and norms after attention and MLP
    "qwen3_moe": (8, 12),  # a router, two products and their sum, instead of an MLP's two products
    "gpt_oss": (8, 12),
}
"""Of a layer, by family, for at most 16 rows and for more; a step of prompts and decodes takes one more."""
FIELDS: dict[str, dict[str, Any]] = {
    **{family: {"layer_types": None} for family in ("gemma3", "olmo3", "gpt_oss")},
    "smollm3": {"no_rope_layers": None},
    "phi3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}


@pytest.mark.parametrize("family", LAUNCHES)
@pytest.mark.parametrize(
    ("rows", "more"),
    [
        pytest.param([1, 1, 1], 0, marks=pytest.mark.full),
        pytest.param([5, 33], 0, marks=pytest.mark.full),
        pytest.param([1] * 17, 0, marks=pytest.mark.full),
        pytest.param([1, 5], 1),
        pytest.param([1, 16], 1, marks=pytest.mark.full),
    ],
)
def test_layer_takes_few_launches_and_mixed_steps_one_more(
    family: str, rows: list[int], more: int, tmp_path: Path
) -> None:
    few, many = LAUNCHES[family]
    expected = (few if sum(rows) <= 16 else many) + more
    assert launches_of_a_layer(partial(save_tiny, family), tmp_path, rows, **FIELDS.get(family, {})) == expected


@pytest.mark.covers("configuration/use-fused-products")
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt_oss", marks=pytest.mark.full)])
@pytest.mark.parametrize("options", [{"fuse_products": False}, {"batch_invariant": True}])
def test_products_are_launches_of_their_own_where_they_are_not_to_be_fused(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    save, fields = partial(save_tiny, family), FIELDS.get(family, {})
    assert launches_of_a_layer(save, tmp_path, [1, 1], options=options, **fields) == LAUNCHES[family][1]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "olmo3", "qwen3_moe", "gpt_oss"])
def test_nothing_is_compiled_again_when_batch_or_length_changes(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path, head_dim=64)
    assert json.loads((tmp_path / "config.json").read_text())["head_dim"] == 64
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert launches(model, [1] * 7)[0]
    for rows, length in (([1] * 8, 70), ([1] * 16, 300), ([1], 1), ([1], 16)):
        assert [kernel.name for kernel in launches(model, rows, length=length)[1].compiled] == []
    assert launches(model, [5, 33])[0]
    for rows, length in (([16], 16), ([7], 300), ([64, 2], 257)):
        assert [kernel.name for kernel in launches(model, rows, length=length)[1].compiled] == []
