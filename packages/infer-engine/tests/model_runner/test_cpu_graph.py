"""A replayed step gives the hidden states that the model gives without it. Knows pools and models; knows no engine."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_cache import KVPool, LayerGroups, PagedCacheView
from infer_engine.model_runner.graphs.cpu_graph import CPUGraph
from infer_engine.model_runner.inputs.forward_batch import BatchShape, ForwardBatch, RowPart, StagedStep
from infer_kernels import KVSlots, plan_attention
from infer_kernels.cpu import NotCapturableError
from infer_models import CausalLM, load_model
from infer_proofs.engine.models import ATTENTION_FAMILIES
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.models import save_tiny_nanogpt

pytestmark = needs_cpu_kernels
CPU = torch.device("cpu")
BLOCK_SIZE = 4
MAX_SEQ_LEN = 32
COLUMNS = MAX_SEQ_LEN // BLOCK_SIZE + 1  # of a block table: one more than a sequence needs
MAX_TOKENS = 150
NUM_BLOCKS = 1 + 32 * COLUMNS  # enough for 32 sequences beside the block that a capture writes to
QUICK = ("llama paged float32", "qwen3 paged bfloat16", "gemma3 paged bfloat16", "gemma3 contiguous float32")
BUILDS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.full)
    for family in ATTENTION_FAMILIES
    for backend in ("paged", "contiguous")
    for name in (f"{family} {backend} float32", f"{family} {backend} bfloat16")
    if family == "gemma3" or backend == "paged"  # without windows both backends are one group
]


class Build:
    """A model and a pool full of random keys and values.

    Attributes:
        model: with packed weights, where the machine has them.
        pool: its memory; a window of a contiguous cache has no group of its own.
    """

    def __init__(self, folder: Path, *, backend: str, dtype: torch.dtype) -> None:
        self.model: CausalLM = load_model(folder, device=CPU, dtype=dtype)
        self.model.prepack()
        config = self.model.config
        paged = LayerGroups.by_window(config.windows)
        groups = paged if backend == "paged" else LayerGroups.all_in_one(config.num_layers)
        self.pool = KVPool(
            group_of_layer=groups.group_of_layer,
            num_blocks=[NUM_BLOCKS] * len(groups.windows),
            kv_heads=config.kv_heads,
            block_size=BLOCK_SIZE,
            head_dim=config.head_dim,
            dtype=dtype,
            device=CPU,
        )
        generator = torch.Generator().manual_seed(0)
        for memory in self.caches():
            memory.copy_(torch.randn(memory.shape, generator=generator))

    def caches(self) -> list[Tensor]:
        """Keys and values of all layers, the memory itself."""
        layers = range(self.pool.num_layers)
        return [memory(layer) for layer in layers for memory in (self.pool.key_cache, self.pool.value_cache)]

    def step(self, seq_lens: Sequence[int], num_tokens: Sequence[int] | None = None, *, seed: int = 0) -> ForwardBatch:
        """Return a step over scattered blocks; equal seeds, equal blocks.

        Args:
            seq_lens: the sequences' lengths after the step.
            num_tokens: how many last tokens of each the step computes; None: decodes, one of each.
            seed: of tokens and blocks.
        """
        generator = torch.Generator().manual_seed(seed)
        tables = [
            1 + torch.randperm(NUM_BLOCKS - 1, generator=generator, dtype=torch.int32).view(-1, COLUMNS)
            for _ in self.pool.num_blocks
        ]
        counts = [1] * len(seq_lens) if num_tokens is None else num_tokens
        query_start = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
        positions = torch.cat(
            [torch.arange(end - count, end, dtype=torch.int32) for end, count in zip(seq_lens, counts, strict=True)]
        )
        rows = torch.arange(len(seq_lens)).repeat_interleave(torch.tensor(counts))
        blocks = [table[rows, positions // BLOCK_SIZE] for table in tables]
        read = tuple(table[: len(seq_lens), : (max(seq_lens) - 1) // BLOCK_SIZE + 2] for table in tables)
        vocab_size = self.model.config.vocab_size
        return ForwardBatch(
            shape=BatchShape(len(positions), len(seq_lens), is_decode_only=num_tokens is None),
            num_tokens=len(positions),
            input_ids=torch.randint(vocab_size, (len(positions),), generator=generator, dtype=torch.int32),
            position_ids=positions,
            slots=tuple(block * BLOCK_SIZE + positions % BLOCK_SIZE for block in blocks),
            logits_indices=query_start[1:] - 1,
            query_start=query_start,
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            total_len=sum(seq_lens),
            is_prefill=torch.tensor([count > 1 for count in counts]),
            gather_block_tables=lambda: read,
            metadata=None,
            has_pending_tokens=False,
            stage=_no_step,
        )

    @torch.inference_mode()
    def eager(self, inputs: ForwardBatch) -> Tensor:
        """Return the hidden states of a step that is laid out and called anew."""
        plans = [
            plan_attention(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                is_prefill=inputs.is_prefill,
                block_table=table,
                block_size=BLOCK_SIZE,
                device=CPU,
            )
            for table in inputs.gather_block_tables()
        ]
        slots = [KVSlots(each, block_size=BLOCK_SIZE) for each in inputs.slots]
        view = PagedCacheView(self.pool, slots=slots, plans=plans)
        return self.model.hidden_states(inputs.input_ids, inputs.position_ids, view)


@pytest.fixture(scope="module")
def nanogpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NanoGPT's checkpoint."""
    folder = tmp_path_factory.mktemp("nanogpt")
    save_tiny_nanogpt(folder)
    return folder


@pytest.fixture(scope="module", params=BUILDS)
def build(request: pytest.FixtureRequest, folder_of: Callable[[str], Path]) -> Build:
    """Every family in both dtypes, over every grouping of its layers."""
    family, backend, dtype = request.param.split()
    return Build(folder_of(family), backend=backend, dtype=getattr(torch, dtype))


@pytest.fixture(scope="module")
def graph(build: Build) -> CPUGraph:
    """The one graph that all of a build's steps replay."""
    return capture(build)


def capture(build: Build, **options: Any) -> CPUGraph:
    return CPUGraph(build.model, build.pool, max_tokens=MAX_TOKENS, max_seqs=32, max_seq_len=MAX_SEQ_LEN, **options)


@torch.inference_mode()
def _no_step() -> StagedStep:
    raise AssertionError("there are no other ranks")


def replay(graph: CPUGraph, inputs: ForwardBatch) -> Tensor:
    return graph.replay(inputs).clone()  # the next replay overwrites it


def lengths_of(num_seqs: int) -> list[int]:
    """Lengths on both sides of a block's edge and of Gemma's window of 8 tokens, and of every remainder."""
    return [(1, 4, 5, 8, 9, 31, 12, 17, 2, 30, 13)[number % 11] for number in range(num_seqs)]


@pytest.mark.parametrize("num_seqs", [1, 2, 3, 7, 21, 32])
def test_a_replayed_step_of_any_number_of_sequences_gives_the_same_bits(
    build: Build, graph: CPUGraph, num_seqs: int
) -> None:
    inputs = build.step(lengths_of(num_seqs), seed=num_seqs)
    hidden = replay(graph, inputs)
    assert hidden.shape == (num_seqs, build.model.config.hidden_size)
    assert hidden.equal(build.eager(inputs))


@pytest.mark.parametrize(
    ("seq_lens", "num_tokens"),
    [
        ([30], [30]),  # a whole prompt
        ([31, 17], [14, 17]),  # the rest of one and a whole one
        ([9, 30, 2, 25, 12], [1, 30, 1, 7, 1]),  # prompts among decodes
        ([32] * 8, [18] * 8),  # many tokens: products copy their inputs
        ([5] * 32, [2, 1, 5, 3] * 8),
    ],
)
def test_a_replayed_step_of_prompts_and_decodes_gives_the_same_bits(
    build: Build, graph: CPUGraph, seq_lens: list[int], num_tokens: list[int]
) -> None:
    inputs = build.step(seq_lens, num_tokens, seed=len(seq_lens))
    for _ in range(2):
        assert replay(graph, inputs).equal(build.eager(inputs))
    decodes = build.step([9, 30, 2])
    assert replay(graph, decodes).equal(build.eager(decodes))


def test_sequences_that_grow_over_blocks_edges_get_the_same_bits_in_every_step(build: Build, graph: CPUGraph) -> None:
    for grown in range(14):
        inputs = build.step([1 + grown, 11 + grown, 18 + grown])
        assert replay(graph, inputs).equal(build.eager(inputs)), f"after {grown} tokens"


def test_what_one_step_laid_out_is_not_taken_for_the_next_ones(build: Build, graph: CPUGraph) -> None:
    steps = [
        build.step([9, 30, 2]),
        build.step([9, 30, 2], seed=1),  # as long, in other blocks
        build.step([30, 2, 9], seed=1),  # the same numbers of blocks, in another order
        build.step([9, 30], seed=1),
        build.step([12, 32, 4], seed=1),
    ]
    for number in (0, 1, 2, 3, 4, 0, 0, 3, 1):
        assert replay(graph, steps[number]).equal(build.eager(steps[number]))


def test_a_replayed_step_stores_what_the_model_stores(build: Build, graph: CPUGraph) -> None:
    inputs = build.step(lengths_of(7), seed=70)
    before = [memory.clone() for memory in build.caches()]
    build.eager(inputs)
    stored = [memory.clone() for memory in build.caches()]
    for memory, old in zip(build.caches(), before, strict=True):
        memory.copy_(old)
    replay(graph, inputs)
    assert all(memory.equal(expected) for memory, expected in zip(build.caches(), stored, strict=True))
    assert not any(memory.equal(old) for memory, old in zip(build.caches(), before, strict=True))


def test_a_capture_computes_nothing(build: Build) -> None:
    before = [memory.clone() for memory in build.caches()]
    capture(build)
    assert all(memory.equal(old) for memory, old in zip(build.caches(), before, strict=True))


def test_a_model_with_other_operations_is_refused(nanogpt: Path) -> None:
    with pytest.raises(NotCapturableError, match="aten"):
        capture(Build(nanogpt, backend="paged", dtype=torch.float32))


def test_two_graphs_of_one_model_each_use_their_own_pool(folder_of: Callable[[str], Path]) -> None:
    one, two = (Build(folder_of("llama"), backend="paged", dtype=torch.bfloat16) for _ in range(2))
    two.model = one.model
    for memory in two.caches():
        memory.neg_()
    inputs = one.step([9, 30, 2])
    for owner in (one, two, one):
        assert replay(capture(owner), inputs).equal(owner.eager(inputs))
    assert not one.eager(inputs).equal(two.eager(inputs))


def test_an_optional_part_of_batches_is_copied_to_where_the_captured_step_reads_it(
    folder_of: Callable[[str], Path],
) -> None:
    adapters = RowPart(
        name="adapters", num_columns=1, padding=-7, read=lambda row: (row.arrival,), is_in=lambda _: True
    )
    build = Build(folder_of("llama"), backend="paged", dtype=torch.bfloat16)
    captured = capture(build, row_parts=(adapters,))
    step = build.step([4, 5], seed=0)
    replay(captured, replace(step, row_parts={adapters: (torch.tensor([3, 1], dtype=torch.int32),)}))
    assert captured.inputs.row_parts[adapters][0].tolist() == [3, 1] + 30 * [-7]
