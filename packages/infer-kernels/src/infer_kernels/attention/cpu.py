"""Paged attention on a CPU: one SDPA per sequence. Knows rows and phases; knows no blocks and no Triton.

A decode is one call whose "tokens" are the query heads that share a key-value head, so keys are read once and never
repeated.

Precision: SDPA's, fp32 accumulation and one rounding; with a soft cap all of it in fp32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.attention.cpu_cache import CacheReader, KeySpan, key_spans, sequence_rows
from infer_kernels.attention.halves import DecodeLayout, DecodeRun, attend_in_halves, lay_out_decodes
from infer_kernels.attention.plan import AttentionOptions, AttentionPlan
from infer_kernels.attention.scores import capped_attention, visible_mask
from infer_kernels.attention.work import HostLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowLayout:
    """What a window leaves in reach: of all sequences, of those that decode over a run, and of the rest."""

    spans: tuple[KeySpan, ...]
    decode_runs: tuple[DecodeRun, ...]
    others: tuple[KeySpan, ...]


class CpuAttentionPlan(AttentionPlan):
    """A plan whose sequences are attended one after another."""

    __slots__ = ("_block_table", "_decode_layouts", "_empty_rows", "_masks", "_sequences", "_window_layouts")

    def __init__(self, layout: HostLayout, block_table: Tensor, *, block_size: int, device: torch.device) -> None:
        """Lay out the sequences of `layout`, whose blocks are `block_table` [seqs, columns]."""
        super().__init__(num_tokens=int(layout.query_start[-1]), block_size=block_size, device=device)
        rows = sequence_rows(layout)
        self._block_table = block_table
        self._sequences = [row for row in rows if row.seq_len > 0]
        self._empty_rows = [(row.start, row.stop) for row in rows if row.seq_len == 0]
        # What the first layer of a window lays out serves every later one.
        self._window_layouts: dict[int | None, _WindowLayout] = {}
        self._decode_layouts: dict[int | None, DecodeLayout] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}  # (first row, window) -> [tokens, keys]

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, options: AttentionOptions, out: Tensor) -> None:
        """Write the attention of q into `out`; arguments as for `paged_attention`, already checked."""
        for start, stop in self._empty_rows:
            out[start:stop].zero_()
        keys, values = CacheReader(k_cache), CacheReader(v_cache)
        layout = self._window_layout(options.window)
        spans = layout.spans
        if keys.rows is not None and values.rows is not None and options.soft_cap is None:
            self._attend_decode_runs(q, keys.rows, values.rows, options, out)
            spans = layout.others
        for span in spans:
            rows = slice(span.sequence.start, span.sequence.stop)
            attended = self._attend_sequence(q[rows].transpose(0, 1), keys.read(span), values.read(span), span, options)
            out[rows] = attended.transpose(0, 1)

    def _attend_decode_runs(
        self, q: Tensor, k_rows: Tensor, v_rows: Tensor, options: AttentionOptions, out: Tensor
    ) -> None:
        """Attend all decodes on views; `k_rows` and `v_rows` are [kv_heads, slots, head_dim].

        This runs for every sequence, layer and token: one view a tensor, one call, one copy.
        """
        kv_heads = k_rows.shape[0]
        layout = self._decode_layouts.get(options.window)
        if layout is None:
            layout = lay_out_decodes(self._window_layout(options.window).decode_runs, kv_heads)
            self._decode_layouts[options.window] = layout
        if layout.halved:
            attend_in_halves(layout, q, k_rows, v_rows, scale=options.scale, out=out)
        # [kv_heads, tokens, group, head_dim]: a decode's queries are rows of its key-value head.
        grouped, grouped_out = (x.view(len(x), kv_heads, -1, x.shape[2]).transpose(0, 1) for x in (q, out))
        k_rows, v_rows = k_rows.unsqueeze(1), v_rows.unsqueeze(1)
        for run in layout.whole:
            attended = functional.scaled_dot_product_attention(
                grouped.narrow(1, run.row, 1),
                k_rows.narrow(2, run.first_slot, run.keys),
                v_rows.narrow(2, run.first_slot, run.keys),
                scale=options.scale,
            )
            grouped_out.narrow(1, run.row, 1).copy_(attended)

    def _window_layout(self, window: int | None) -> _WindowLayout:
        layout = self._window_layouts.get(window)
        if layout is None:
            spans = key_spans(self._sequences, self._block_table, block_size=self.block_size, window=window)
            runs, others = [], []
            for span in spans:
                if span.sequence.is_prefill or span.first_slot is None:
                    others.append(span)
                else:
                    runs.append(DecodeRun(span.sequence.start, span.first_slot, span.num_keys))
            layout = _WindowLayout(spans=tuple(spans), decode_runs=tuple(runs), others=tuple(others))
            self._window_layouts[window] = layout
        return layout

    def _attend_sequence(self, q: Tensor, k: Tensor, v: Tensor, span: KeySpan, options: AttentionOptions) -> Tensor:
        """[q_heads, tokens, head_dim] of q over [kv_heads, keys, head_dim]; the result is like q."""
        if options.soft_cap is not None:
            mask = self._mask(span, options.window)
            return capped_attention(q, k, v, mask, scale=options.scale, soft_cap=options.soft_cap)
        sequence = span.sequence
        if not sequence.is_prefill:
            rows = q.reshape(k.shape[0], -1, 1, q.shape[2]).transpose(1, 2)  # [kv_heads, 1, group, head_dim]
            attended = functional.scaled_dot_product_attention(
                rows, k.unsqueeze(1), v.unsqueeze(1), scale=options.scale
            )
            return attended.transpose(1, 2).flatten(0, 1)
        whole = sequence.first_position == 0 and (options.window is None or options.window >= sequence.seq_len)
        return functional.scaled_dot_product_attention(
            q.unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=None if whole else self._mask(span, options.window),
            is_causal=whole,
            scale=options.scale,
            enable_gqa=True,
        )[0]

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
