"""Attention through the pool equals dense causal attention over the same tokens, however they are stored and split."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_cache import KVPool, LayerGroups, PagedCacheView, PagedKVCacheManager, TableEdit
from infer_kernels import KVSlots, NormVariant, QKNorm, Rotary, plan_attention
from infer_models import CausalView
from infer_models.attention import AttentionSpec
from infer_proofs.kernels.devices import DEVICES

TOLERANCE = 1e-4


def spec_of(*, group: int = 3, window: int | None = None, soft_cap: float | None = None) -> AttentionSpec:
    return AttentionSpec(q_heads=2 * group, kv_heads=2, head_dim=16, scale=0.3, window=window, soft_cap=soft_cap)


def dense(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, sinks: Tensor | None) -> Tensor:
    """The definition, one query head at a time: q [tokens, q_heads, head_dim] over all of k and v."""
    position = torch.arange(len(q), device=q.device)
    distance = position[:, None] - position
    hidden = (distance < 0) | (distance >= (spec.window or len(q)))
    heads = []
    for head in range(spec.q_heads):
        kv_head = head // (spec.q_heads // spec.kv_heads)
        scores = q[:, head] @ k[:, kv_head].T * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        sink = torch.tensor(-torch.inf) if sinks is None else sinks[head]
        scores = torch.cat((scores.masked_fill(hidden, -torch.inf), sink.to(q).expand(len(q), 1)), dim=1)
        heads.append(scores.softmax(-1)[:, :-1] @ v[:, kv_head])
    return torch.stack(heads, dim=1)


def deviation(attended: Tensor, expected: Tensor) -> float:
    """The largest difference: absolute for small elements, relative for large ones.

    `torch.testing.assert_close` imports so much of torch that it takes longer than all these tests.
    """
    assert attended.shape == expected.shape
    return float(((attended - expected).abs() / (1 + expected.abs())).max())


class CachedSequences:
    """Random sequences whose tokens are attended step by step through one pool, layers of equal window in a group."""

    def __init__(
        self,
        seq_lens: Sequence[int],
        *,
        block_size: int,
        spec: AttentionSpec,
        windows: Sequence[int | None] | None = None,
        shuffled: bool = True,
        has_sinks: bool = False,
        device: str = "cpu",
    ) -> None:
        generator = torch.Generator().manual_seed(sum(seq_lens) + block_size)
        self.device = device
        self.specs = [replace(spec, window=window) for window in windows or [spec.window] * 2]
        self.groups = LayerGroups.by_window([spec.window for spec in self.specs])
        self.heads = [spec.q_heads, spec.kv_heads, spec.kv_heads]
        shape = (len(self.specs), sum(self.heads), spec.head_dim)
        self.qkv = [torch.randn(seq_len, *shape, generator=generator).to(device) for seq_len in seq_lens]
        drawn = torch.randn(len(self.specs), spec.q_heads, generator=generator).to(device)
        self.sinks = [*drawn] if has_sinks else [None] * len(self.specs)
        lengths = [-(-seq_len // block_size) for seq_len in seq_lens]
        num_blocks = [sum(lengths) + group for group in range(len(self.groups.windows))]
        orders = [
            torch.randperm(count, generator=generator) if shuffled else torch.arange(count) for count in num_blocks
        ]
        # By group and sequence, the blocks of its columns.
        self.rows = [[blocks.tolist() for blocks in torch.split(order[: sum(lengths)], lengths)] for order in orders]
        self.pool = KVPool(
            group_of_layer=self.groups.group_of_layer,
            num_blocks=num_blocks,
            kv_heads=spec.kv_heads,
            block_size=block_size,
            head_dim=spec.head_dim,
            dtype=torch.float32,
            device=torch.device(device),
        )
        self.num_cached = [0] * len(seq_lens)
        self.attended: list[list[Tensor]] = [[] for _ in seq_lens]

    def view(self, spans: dict[int, range]) -> PagedCacheView:
        """View the pool as the step does that computes the tokens `spans[i]` of each sequence i."""
        size = self.pool.block_size
        plans, slots = [], []
        for rows in self.rows:
            width = max(map(len, rows)) + 1
            plans.append(
                plan_attention(
                    query_start=torch.tensor([0, *map(len, spans.values())]).cumsum(0).int(),
                    seq_lens=torch.tensor([span.stop for span in spans.values()], dtype=torch.int32),
                    block_table=torch.tensor(
                        [rows[i] + [0] * (width - len(rows[i])) for i in spans], dtype=torch.int32
                    ),
                    block_size=size,
                    device=self.device,
                )
            )
            places = [rows[i][at // size] * size + at % size for i, span in spans.items() for at in span]
            slots.append(KVSlots(torch.tensor(places, dtype=torch.int32, device=self.device), block_size=size))
        return PagedCacheView(self.pool, slots=slots, plans=plans)

    def step(self, counts: dict[int, int]) -> None:
        """Compute the next `counts[i]` tokens of each sequence i, all in one flat batch."""
        spans = {i: range(self.num_cached[i], self.num_cached[i] + count) for i, count in counts.items()}
        view = self.view(spans)
        qkv = torch.cat([self.qkv[i][span.start : span.stop] for i, span in spans.items()])
        layers = [view.attend(n, qkv[:, n], spec, sinks=self.sinks[n]) for n, spec in enumerate(self.specs)]
        for (i, span), rows in zip(
            spans.items(), torch.split(torch.stack(layers, dim=1), [*counts.values()]), strict=True
        ):
            self.attended[i].append(rows)
            self.num_cached[i] = span.stop

    def assert_equal_to_dense(self) -> None:
        for qkv, attended in zip(self.qkv, self.attended, strict=True):
            for n, spec in enumerate(self.specs):
                q, k, v = torch.split(qkv[:, n], self.heads, dim=1)
                expected = dense(q, k, v, spec, self.sinks[n])
                assert deviation(torch.cat(attended)[:, n], expected) <= TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_whole_prefill_of_a_ragged_batch_is_dense_attention(block_size: int, device: str) -> None:
    sequences = CachedSequences([37, 1, 16, 65], block_size=block_size, spec=spec_of(), device=device)
    sequences.step({0: 37, 1: 1, 2: 16, 3: 65})
    sequences.assert_equal_to_dense()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_chunked_prefill_is_dense_attention(block_size: int, device: str) -> None:
    sequences = CachedSequences([23, 40], block_size=block_size, spec=spec_of(), device=device)
    for counts in ({0: 7, 1: 16}, {0: 1, 1: 16}, {1: 8, 0: 15}):
        sequences.step(counts)
    sequences.assert_equal_to_dense()


@pytest.mark.covers("scheduling/one-forward-pass")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_decode_beside_a_prompt_is_dense_attention(block_size: int, device: str) -> None:
    sequences = CachedSequences([20, 34, 12], block_size=block_size, spec=spec_of(), device=device)
    sequences.step({0: 10, 1: 30})
    for prompt_chunk in (3, 3, 3, 3):
        sequences.step({0: 1, 1: 1, 2: prompt_chunk})
    for _ in range(6):
        sequences.step({0: 1})
    sequences.assert_equal_to_dense()


@pytest.mark.covers("kv-cache/shuffled-tables")
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_consecutive_blocks_give_what_shuffled_ones_give(block_size: int) -> None:
    for shuffled in (True, False):
        sequences = CachedSequences([33, 9], block_size=block_size, spec=spec_of(), shuffled=shuffled)
        sequences.step({0: 20, 1: 9})
        sequences.step({0: 12})
        sequences.step({0: 1})
        sequences.assert_equal_to_dense()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [1, 4, 5, 6, 100])
def test_a_window_hides_what_has_left_it(window: int, device: str) -> None:
    sequences = CachedSequences([19, 11], block_size=5, spec=spec_of(window=window), device=device)
    sequences.step({0: 9, 1: 11})
    sequences.step({0: 8})
    sequences.step({0: 1})
    sequences.step({0: 1})
    sequences.assert_equal_to_dense()


@pytest.mark.parametrize("group", [1, 8])
def test_scale_and_soft_cap_reach_every_group_ratio(group: int) -> None:
    sequences = CachedSequences([14], block_size=4, spec=spec_of(group=group, soft_cap=2.0))
    for count in (6, 7, 1):
        sequences.step({0: count})
    sequences.assert_equal_to_dense()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_layers_have_sinks_of_their_own(block_size: int, device: str) -> None:
    sequences = CachedSequences(
        [20, 12], block_size=block_size, spec=spec_of(), windows=[None, 5, None], has_sinks=True, device=device
    )
    for counts in ({0: 10}, {0: 7, 1: 11}, {0: 1, 1: 1}, {0: 2}):
        sequences.step(counts)
    sequences.assert_equal_to_dense()


def test_a_slot_of_minus_one_stores_nothing() -> None:
    spec = spec_of()
    sequences = CachedSequences([3], block_size=4, spec=spec)
    plan = plan_attention(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([1], dtype=torch.int32),
        block_table=torch.tensor([[0, 0]], dtype=torch.int32),
        block_size=4,
        device="cpu",
    )
    view = PagedCacheView(
        sequences.pool,
        slots=[KVSlots(torch.tensor([-1], dtype=torch.int32), block_size=sequences.pool.block_size)],
        plans=[plan],
    )
    view.attend(0, torch.ones(1, 6 + 2 + 2, 16), spec)
    assert not sequences.pool.key_cache(0).any()
    assert not sequences.pool.value_cache(0).any()


@pytest.mark.parametrize("variant", ["llama", "gemma"])
def test_normed_and_rotated_heads_are_attended_as_without_a_cache(variant: NormVariant) -> None:
    spec, generator = spec_of(), torch.Generator().manual_seed(5)
    sequences = CachedSequences([11], block_size=4, spec=spec)
    qkv, cos_sin = (torch.randn(11, *shape, generator=generator) for shape in ((6 + 2 + 2, 16), (16,)))
    q_weight, k_weight = torch.randn(2, 16, generator=generator)
    norm = QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)
    rotary = Rotary(position_ids=torch.arange(11), cos_sin=cos_sin)
    sinks = torch.randn(6, generator=generator)
    expected = CausalView().attend(1, qkv, spec, rotary=rotary, norm=norm, sinks=sinks)
    for span in (range(7), range(7, 11)):
        rotary, rows = Rotary(position_ids=torch.tensor(span), cos_sin=cos_sin), qkv[span.start : span.stop]
        attended = sequences.view({0: span}).attend(1, rows, spec, rotary=rotary, norm=norm, sinks=sinks)
        assert deviation(attended, expected[span.start : span.stop]) <= TOLERANCE


@given(
    block_size=st.integers(1, 9),
    chunks=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 12),
)
def test_any_split_into_chunks_is_dense_attention(block_size: int, chunks: list[list[int]], window: int | None) -> None:
    sequences = CachedSequences([sum(sizes) for sizes in chunks], block_size=block_size, spec=spec_of(window=window))
    for step in range(max(map(len, chunks))):
        sequences.step({i: sizes[step] for i, sizes in enumerate(chunks) if step < len(sizes)})
    sequences.assert_equal_to_dense()


@pytest.mark.parametrize("block_size", [1, 4])
def test_blocks_of_a_released_sequence_serve_the_next_one(block_size: int) -> None:
    manager = PagedKVCacheManager([-(-24 // block_size)], block_size)
    sequences = CachedSequences([24, 17], block_size=block_size, spec=spec_of())
    for i, seq_len in enumerate((24, 17)):
        manager.admit(str(i), seq_len, manager.find([], seq_len))
        sequences.rows[0][i] = list(manager.blocks(str(i)))
        sequences.step({i: seq_len})
        manager.release(str(i))
    sequences.assert_equal_to_dense()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_layers_of_two_groups_attend_through_tables_of_their_own(block_size: int, device: str) -> None:
    windows = [5, 5, None, 5]
    sequences = CachedSequences([23, 9], block_size=block_size, spec=spec_of(), windows=windows, device=device)
    assert sequences.rows[0] != sequences.rows[1]
    for counts in ({0: 7, 1: 9}, {0: 13}, {0: 1}, {0: 1}, {0: 1}):
        sequences.step(counts)
    sequences.assert_equal_to_dense()


@pytest.mark.covers("kv-cache/window-reads")
@pytest.mark.parametrize("windows", [[6, None], [9, 3]])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_what_left_the_window_is_not_read_again(block_size: int, windows: list[int | None]) -> None:
    sequences = CachedSequences([30, 17], block_size=block_size, spec=spec_of(), windows=windows)
    manager = PagedKVCacheManager(sequences.pool.num_blocks, block_size, windows=sequences.groups.windows, max_chunk=7)
    sequences.rows = [[[0] * 30, [0] * 17] for _ in sequences.groups.windows]

    def write(i: int, edits: list[TableEdit] | None) -> None:
        assert edits is not None
        for edit in edits:
            sequences.rows[edit.group][i][edit.column : edit.column + len(edit.block_ids)] = edit.block_ids

    for i, seq_len in enumerate((30, 17)):
        write(i, manager.admit(str(i), seq_len - 4, manager.find([], seq_len - 4)))
    for counts in ({0: 7, 1: 3}, {0: 6, 1: 7}, {0: 7, 1: 3}, {0: 6}, *[{0: 1, 1: 1}] * 4):
        for i, count in counts.items():
            first = sequences.num_cached[i]
            write(i, manager.try_extend(str(i), first + count, first_position=first))
        poison_free_blocks(sequences.pool, manager)
        sequences.step(counts)
    sequences.assert_equal_to_dense()


def poison_free_blocks(pool: KVPool, manager: PagedKVCacheManager) -> None:
    """Fill the blocks without references with keys and values that would change any result."""
    for layer in range(pool.num_layers):
        group = pool.group(layer)
        is_referenced = manager.groups[group].block_pool.is_referenced
        free = [block_id for block_id in range(pool.num_blocks[group]) if not is_referenced(block_id)]
        pool.key_cache(layer)[free] = 1e3
        pool.value_cache(layer)[free] = 1e3


@pytest.mark.parametrize("window", [None, 7])
def test_a_layer_that_shares_anothers_keys_attends_to_them_and_stores_nothing(window: int | None) -> None:
    sequences = CachedSequences([23, 9], block_size=4, spec=spec_of(window=window))
    spec = sequences.specs[0]
    attended: list[list[Tensor]] = [[], []]
    for counts in ((17, 9), (1, 0), (5, 0)):
        spans = {
            i: range(done, done + count)
            for i, (done, count) in enumerate(zip(sequences.num_cached, counts, strict=True))
        }
        view = sequences.view(spans)
        qkv = torch.cat([sequences.qkv[i][span.start : span.stop] for i, span in spans.items()])
        view.attend(0, qkv[:, 0], spec)
        before = [sequences.pool.key_cache(layer).clone() for layer in (0, 1)]
        rows = view.attend_shared(0, qkv[:, 1, : spec.q_heads], spec)
        assert all(torch.equal(sequences.pool.key_cache(layer), each) for layer, each in enumerate(before))
        for i, part in enumerate(torch.split(rows, list(counts))):
            attended[i].append(part)
            sequences.num_cached[i] += counts[i]
    for qkv, parts in zip(sequences.qkv, attended, strict=True):
        _, k, v = torch.split(qkv[:, 0], sequences.heads, dim=1)
        assert deviation(torch.cat(parts), dense(qkv[:, 1, : spec.q_heads], k, v, spec, None)) <= TOLERANCE
