"""Where adapters come in: a product of low rank for each sequence, from one optional part of a batch.

A sketch of LoRA (Hu et al., 2021) that needs nothing of the sources but `RowPart` and `KVCacheView.numbers`: the oracle
are checkpoints into whose weights each adapter was merged.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from infer_engine import LLM, SamplingParams
from infer_engine.model_runner.inputs.forward_batch import ROW_PARTS, RowPart
from infer_kernels import apply_pending_norm
from infer_models import CausalLM, KVCacheView, load_model
from infer_models.layers import LayerInput, LayerNorm, LinearBase, PackedLinear, RMSNorm

LOADING = "infer_engine.model_runner.loading.rank_loading"
RANK = 4
NUM_ADAPTERS = 3
MERGED = {
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "qwen3_5": ("o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""The layers that have adapters."""
PROMPTS = [[5, 9, 200, 31], [77, 3], [18] * 12, [4, 8, 15, 16, 23], [42, 42], [250, 1, 7]]
ADAPTERS = RowPart(
    name="adapters",
    num_columns=1,
    padding=-1,
    read=lambda row: (row.arrival % (NUM_ADAPTERS + 1) - 1,),  # -1: the model as it is
    is_in=lambda _: True,
)
Adapter = dict[str, tuple[Tensor, Tensor]]
"""A [rank, in_features] and B [out_features, rank] of each layer, by its name in checkpoints."""


class StepAdapters:
    """The adapter of each sequence in the step that is computed."""

    view: KVCacheView

    def look_at(self, _: nn.Module, inputs: tuple[Tensor, Tensor, KVCacheView]) -> None:
        """Remember the view that a decoder is called with."""
        self.view = inputs[2]

    def of_rows(self, num_rows: int) -> Tensor:
        """Return the adapter of each of a step's rows, [rows]; -1: none."""
        query_start, (adapters,) = self.view.numbers("adapters")
        counts = query_start.diff()
        of_rows = adapters.repeat_interleave(counts)
        return torch.nn.functional.pad(of_rows, (0, num_rows - len(of_rows)), value=-1)


class AdaptedLinear(nn.Module):
    """A dense layer, plus `x @ A.T @ B.T` of each row's adapter."""

    def __init__(self, layer: LinearBase, pairs: list[tuple[Tensor, Tensor]], step: StepAdapters) -> None:
        super().__init__()
        self.layer, self.pairs, self.step = layer, pairs, step

    def forward(self, x: LayerInput) -> Tensor:
        rows = apply_pending_norm(x)
        out: Tensor = self.layer(rows)
        adapters = self.step.of_rows(len(rows))
        for adapter, (a, b) in enumerate(self.pairs):
            out = out + (rows @ a.T @ b.T) * (adapters == adapter)[:, None]
        return out

    def gated(self, x: LayerInput, activation_and_mul: Callable[[Tensor], Tensor]) -> Tensor:
        return activation_and_mul(self(x))

    def add_norm(self, x: Tensor, residual: Tensor, norm: RMSNorm | LayerNorm) -> tuple[LayerInput, Tensor]:
        return norm.add_norm(self(x), residual)


def adapt(model: CausalLM, adapters: list[Adapter]) -> CausalLM:
    """Put an `AdaptedLinear` in the place of each dense layer of the decoder; any family's."""
    step = StepAdapters()
    model.model.register_forward_pre_hook(step.look_at)
    for name, layer in list(model.model.named_modules()):
        if isinstance(layer, LinearBase):
            place, _, leaf = name.rpartition(".")
            names = list(layer.parts) if isinstance(layer, PackedLinear) else [leaf]
            paths = [f"model.{place}.{each}" for each in names]
            if paths[0] not in adapters[0]:
                continue
            pairs = [joined([adapter[path] for path in paths]) for adapter in adapters]
            setattr(model.model.get_submodule(place), leaf, AdaptedLinear(layer, pairs, step))
    return model


def joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return one pair for layers of one input whose outputs lie side by side."""
    both = torch.block_diag(*(b for _, b in parts))  # type: ignore[no-untyped-call]  # torch has no types for it
    return torch.cat([a for a, _ in parts]), both


def drawn_adapter(weights: dict[str, Tensor], layers: tuple[str, ...], seed: int) -> Adapter:
    """Return an adapter of some layers that changes what the model says."""
    generator = torch.Generator().manual_seed(seed)
    names = [name.removesuffix(".weight") for name in weights]
    shapes = {name: weights[f"{name}.weight"].shape for name in names if name.endswith(layers)}
    return {
        name: (0.3 * torch.randn(RANK, columns, generator=generator), torch.randn(rows, RANK, generator=generator))
        for name, (rows, columns) in shapes.items()
    }


def merged(folder: Path, adapter: Adapter, path: Path) -> Path:
    """Save the checkpoint in `folder` with an adapter in its weights."""
    shutil.copytree(folder, path)
    weights = load_file(folder / "model.safetensors")
    weights |= {f"{name}.weight": weights[f"{name}.weight"].float() + b @ a for name, (a, b) in adapter.items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def answers(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy continuations of prompts, some of which are computed beside decodes."""
    llm = LLM(str(folder), dtype="float32", device="cpu", max_batch_size=4, prefill_chunk_size=8)
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    return [completion.token_ids for completion in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_sequences_of_one_batch_have_adapters_of_their_own(
    family: str, folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(family)
    weights = load_file(folder / "model.safetensors")
    adapters = [drawn_adapter(weights, MERGED[family], seed) for seed in range(NUM_ADAPTERS)]
    of_prompts = [number % (NUM_ADAPTERS + 1) - 1 for number in range(len(PROMPTS))]
    folders = {number: merged(folder, adapter, tmp_path / str(number)) for number, adapter in enumerate(adapters)}
    folders[-1] = folder
    expected = [answers(folders[adapter], [prompt])[0] for adapter, prompt in zip(of_prompts, PROMPTS, strict=True)]
    assert expected != answers(folder, PROMPTS)
    monkeypatch.setattr(f"{LOADING}.ROW_PARTS", (*ROW_PARTS, ADAPTERS))
    monkeypatch.setattr(f"{LOADING}.load_model", lambda *args, **how: adapt(load_model(*args, **how), adapters))
    assert answers(folder, PROMPTS) == expected
