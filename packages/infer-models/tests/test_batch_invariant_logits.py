"""With `batch_invariant` a prompt's logits are the same bits, in chunks, in company and in any blocks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import AttentionPlan, QKNorm, Rotary, paged_attention, plan_attention, qk_norm_rope_store
from infer_models import AttentionSpec, CausalLM, CausalView, load_model
from infer_proofs.kernels.threads import torch_threads
from infer_proofs.models import save_tiny_gemma3, save_tiny_llama, save_tiny_nanogpt, save_tiny_qwen3

CPU = torch.device("cpu")
BLOCK_SIZE = 4
LENGTH = 150
SAVES: dict[str, Callable[[Path], Any]] = {
    "llama": save_tiny_llama,
    "qwen3": save_tiny_qwen3,
    "gemma3": lambda folder: save_tiny_gemma3(folder, final_logit_softcapping=5.0),
    "nanogpt": lambda folder: save_tiny_nanogpt(folder, max_position_embeddings=LENGTH, vocab_size=320),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedView:
    """One step over paged caches [layers, 2, blocks, kv_heads, BLOCK_SIZE, head_dim]. Implements `KVCacheView`."""

    caches: Tensor
    plan: AttentionPlan
    slots: Tensor

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store, then attend."""
        keys, values = self.caches[layer]
        q = qk_norm_rope_store(qkv, keys, values, self.slots, rotary=rotary, norm=norm)
        return paged_attention(
            q, keys, values, self.plan, scale=spec.scale, window=spec.window, soft_cap=spec.soft_cap, sinks=sinks
        )


class Sequences:
    """Prompts that are computed bit by bit, each in blocks of its own."""

    def __init__(self, model: CausalLM, prompts: Sequence[Tensor], *, seed: int) -> None:
        """Give each prompt of LENGTH tokens shuffled blocks."""
        self._model = model
        self._prompts = prompts
        self._done = [0] * len(prompts)
        columns = -(-LENGTH // BLOCK_SIZE) + 1
        blocks = torch.randperm(len(prompts) * columns, generator=torch.Generator().manual_seed(seed))
        self._tables = blocks.view(len(prompts), columns).int()
        spec = model.attention_specs[0]
        shape = (len(model.attention_specs), 2, len(blocks), BLOCK_SIZE, spec.kv_heads, spec.head_dim)
        self._caches = torch.full(shape, torch.nan, dtype=next(model.parameters()).dtype).transpose(3, 4)

    def compute(self, *counts: int) -> Tensor:
        """Compute so many tokens more of each prompt: [prompts, vocab], the logits after them."""
        starts = self._done
        self._done = [start + count for start, count in zip(starts, counts, strict=True)]
        positions = [torch.arange(start, stop) for start, stop in zip(starts, self._done, strict=True)]
        slots = [
            table[position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE
            for table, position in zip(self._tables, positions, strict=True)
        ]
        query_start = torch.tensor([0, *counts]).cumsum(0).int()
        plan = plan_attention(
            query_start=query_start,
            seq_lens=torch.tensor(self._done, dtype=torch.int32),
            block_table=self._tables,
            block_size=BLOCK_SIZE,
            device="cpu",
            batch_invariant=True,
        )
        view = PagedView(caches=self._caches, plan=plan, slots=torch.cat(slots))
        ids = [prompt[position] for prompt, position in zip(self._prompts, positions, strict=True)]
        logits: Tensor = self._model(torch.cat(ids), torch.cat(positions), view, query_start[1:] - 1)
        return logits


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Run with two threads."""
    with torch_threads(2):
        yield


def prompts_of(count: int) -> list[Tensor]:
    return list(torch.randint(3, 320, (count, LENGTH), generator=torch.Generator().manual_seed(1)))


def assert_same_bits(model: CausalLM) -> None:
    """Compute one prompt whole, in chunks and in company, in other blocks each time."""
    first, *others = prompts_of(5)
    whole = Sequences(model, [first], seed=0).compute(LENGTH)[0]

    chunked = Sequences(model, [first], seed=1)
    chunks = [chunked.compute(count) for count in (1, 63, 1, 40, LENGTH - 106, 1)]
    assert torch.equal(chunks[-1][0], whole)

    together = Sequences(model, [*others, first], seed=2)
    together.compute(3, LENGTH - 1, 77, 9, 20)
    together.compute(1, 1, 50, 8, LENGTH - 21)
    assert torch.equal(together.compute(100, 0, 1, 1, 1)[4], whole)


# The quick run has all ways of Gemma 3, and two of each other family.
WAYS = [
    pytest.param(
        family,
        dtype,
        prepacked,
        marks=[] if family == "gemma3" or prepacked == (dtype == torch.bfloat16) else [pytest.mark.full],
    )
    for family, dtype, prepacked in itertools.product(SAVES, (torch.float32, torch.bfloat16), (False, True))
]


@pytest.mark.covers("scheduling/chunked-bits")
@torch.inference_mode()
@pytest.mark.parametrize(("family", "dtype", "prepacked"), WAYS)
def test_logits_are_the_same_bits_in_chunks_in_company_and_in_any_blocks(
    tmp_path: Path, *, family: str, dtype: torch.dtype, prepacked: bool
) -> None:
    SAVES[family](tmp_path)
    model = load_model(tmp_path, device=CPU, dtype=dtype, batch_invariant=True)
    if prepacked:
        model.prepack()
    assert_same_bits(model)


@torch.inference_mode()
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
def test_logits_are_the_same_bits_on_two_threads(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tiny_gemma3(tmp_path, intermediate_size=160)
    assert_same_bits(load_model(tmp_path, device=CPU, dtype=dtype, batch_invariant=True))


@torch.inference_mode()
@pytest.mark.parametrize("family", SAVES)
def test_invariant_logits_are_the_model_s(tmp_path: Path, family: str) -> None:
    SAVES[family](tmp_path)
    invariant, plain = (
        load_model(tmp_path, device=CPU, dtype=torch.float32, batch_invariant=batch_invariant)
        for batch_invariant in (True, False)
    )
    (prompt,) = prompts_of(1)
    expected = plain(prompt, torch.arange(LENGTH), CausalView())[-1]
    assert (Sequences(invariant, [prompt], seed=0).compute(LENGTH)[0] - expected).abs().max() <= 1e-4
