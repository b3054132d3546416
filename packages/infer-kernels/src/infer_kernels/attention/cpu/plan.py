"""Paged attention on a CPU: decodes as embedding bags, prompts one by one.

Embedding bags need a cache of their memory order (see `embedding_bags.py`). Over other caches each decode is one SDPA,
whose "tokens" are the query heads that share a key-value head, so keys are read once and never repeated.

A bf16 prompt is attended in tiles (see `prefill_tiles.py`), any other one by SDPA.

Precision: that of `embedding_bags.py`, of `prefill_tiles.py`, and SDPA's: fp32 accumulation and one rounding; with a
soft cap all of it in fp32.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.attention.cpu.embedding_bags import (
    EmbeddingBagBuilder,
    EmbeddingBags,
    EmbeddingBagSpec,
    embedding_bag_attention,
    supports_embedding_bags,
)
from infer_kernels.attention.cpu.gather import KeySpan, gather_cache, gather_cache_transposed, key_spans, sequence_rows
from infer_kernels.attention.cpu.prefill_tiles import padded_num_keys, supports_prefill_tiles, tiled_prefill_attention
from infer_kernels.attention.masks import capped_attention, visible_mask
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan, HostMetadata


class DecodePlan(AttentionPlan):
    """A plan of a step of decodes alone, one row of q each, over embedding bags built beforehand."""

    __slots__ = ("_bags",)

    def __init__(
        self, bags: Mapping[int | None, EmbeddingBags], *, num_tokens: int, block_size: int, device: torch.device
    ) -> None:
        """Plan `num_tokens` decodes; `bags` are their embedding bags by window."""
        super().__init__(num_tokens=num_tokens, block_size=block_size, device=device)
        self._bags = bags

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""
        attended = embedding_bag_attention(q, k_cache, v_cache, self._bags[options.window], options)
        return attended if out is None else out.copy_(attended)


class CpuAttentionPlan(AttentionPlan):
    """A plan that attends decodes together and prompts one after another."""

    __slots__ = ("_bags", "_block_table", "_decode_rows", "_decodes", "_empty_rows", "_masks", "_prompts", "_spans")

    def __init__(self, layout: HostMetadata, block_table: Tensor, *, block_size: int, device: torch.device) -> None:
        """Lay out the sequences of `layout`, whose blocks are `block_table` [seqs, columns]."""
        super().__init__(num_tokens=int(layout.query_start[-1]), block_size=block_size, device=device)
        rows = sequence_rows(layout)
        self._block_table = block_table
        self._decodes = [row for row in rows if row.seq_len > 0 and not row.is_prefill]
        self._decode_rows = torch.tensor([row.start for row in self._decodes])
        self._prompts = [row for row in rows if row.seq_len > 0 and row.is_prefill]
        self._empty_rows = [(row.start, row.stop) for row in rows if row.seq_len == 0]
        # Made for the first layer of a window, used by every later one.
        self._spans: dict[tuple[int | None, bool], list[KeySpan]] = {}  # (window, whether of prompts)
        self._bags: dict[EmbeddingBagSpec, EmbeddingBags] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}  # (first row, window) -> [tokens, keys]

    def attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor | None
    ) -> Tensor:
        """Return the attention of q, in `out` where it is given; arguments as for `paged_attention`, checked."""
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for start, stop in self._empty_rows:
            out[start:stop].zero_()
        if self._decodes and supports_embedding_bags(k_cache, v_cache):
            bags = self._embedding_bags(q, k_cache, options.window)
            decodes = q.index_select(0, self._decode_rows)
            out.index_copy_(0, self._decode_rows, embedding_bag_attention(decodes, k_cache, v_cache, bags, options))
        else:
            for span in self._spans_of(options.window, is_prefill=False):
                rows = slice(span.sequence.start, span.sequence.stop)
                out[rows] = self._attend_decode(q[rows], k_cache, v_cache, span, options)
        for span in self._spans_of(options.window, is_prefill=True):
            rows = slice(span.sequence.start, span.sequence.stop)
            self._attend_prompt(q[rows], k_cache, v_cache, span, options, out[rows])
        return out

    def _embedding_bags(self, q: Tensor, k_cache: Tensor, window: int | None) -> EmbeddingBags:
        num_blocks, kv_heads, block_size, head_dim = k_cache.shape
        spec = EmbeddingBagSpec(
            q_heads=q.shape[1],
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            num_blocks=num_blocks,
            window=window,
            dtype=k_cache.dtype,
        )
        bags = self._bags.get(spec)
        if bags is None:
            seq_lens = torch.tensor([row.seq_len for row in self._decodes], dtype=torch.int32)
            rows = torch.tensor([row.index for row in self._decodes])
            bags = self._bags[spec] = EmbeddingBagBuilder(spec).build(seq_lens, self._block_table.index_select(0, rows))
        return bags

    def _spans_of(self, window: int | None, *, is_prefill: bool) -> list[KeySpan]:
        spans = self._spans.get((window, is_prefill))
        if spans is None:
            sequences = self._prompts if is_prefill else self._decodes
            spans = self._spans[window, is_prefill] = key_spans(sequences, self._block_table, window=window)
        return spans

    def _attend_decode(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, span: KeySpan, options: AttentionOptions
    ) -> Tensor:
        """[1, q_heads, head_dim] of q, the result like it."""
        k, v = gather_cache(k_cache, span, q.dtype), gather_cache(v_cache, span, q.dtype)
        if options.soft_cap is not None:
            return capped_attention(
                q.transpose(0, 1), k, v, None, scale=options.scale, soft_cap=options.soft_cap
            ).transpose(0, 1)
        grouped = q.reshape(1, k.shape[0], -1, q.shape[2])  # [1, kv_heads, group, head_dim]
        attended = functional.scaled_dot_product_attention(grouped, k.unsqueeze(0), v.unsqueeze(0), scale=options.scale)
        return attended.view(q.shape)

    def _attend_prompt(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, span: KeySpan, options: AttentionOptions, out: Tensor
    ) -> None:
        """Write the attention of q [tokens, q_heads, head_dim] into `out`, which is like it."""
        sequence = span.sequence
        if supports_prefill_tiles(q):
            num_keys = padded_num_keys(span.num_keys, tokens=len(q), window=options.window)
            k = gather_cache_transposed(k_cache, span, torch.float32, num_keys=num_keys)
            v = gather_cache(v_cache, span, q.dtype, num_keys=num_keys)
            position, first_key = sequence.first_position, span.first_key
            tiled_prefill_attention(q, k, v, options, first_position=position, first_key=first_key, out=out)
            return
        k, v = gather_cache(k_cache, span, q.dtype), gather_cache(v_cache, span, q.dtype)
        queries = q.transpose(0, 1)
        if options.soft_cap is not None:
            mask = self._mask(span, options.window)
            attended = capped_attention(queries, k, v, mask, scale=options.scale, soft_cap=options.soft_cap)
            out.copy_(attended.transpose(0, 1))
            return
        whole = sequence.first_position == 0 and (options.window is None or options.window >= sequence.seq_len)
        attended = functional.scaled_dot_product_attention(
            queries.unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=None if whole else self._mask(span, options.window),
            is_causal=whole,
            scale=options.scale,
            enable_gqa=True,
        )[0]
        out.copy_(attended.transpose(0, 1))

    def _mask(self, span: KeySpan, window: int | None) -> Tensor:
        sequence = span.sequence
        key = (sequence.start, window)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = visible_mask(
                first_position=sequence.first_position,
                tokens=sequence.stop - sequence.start,
                first_key=span.first_key,
                keys=span.num_keys,
                window=window,
                device=self.device,
            )
        return mask
