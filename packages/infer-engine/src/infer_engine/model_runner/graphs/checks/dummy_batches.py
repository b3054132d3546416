"""`DummyBatches`: batches that fill a shape, over a KV pool with noise in their blocks and NaN in all others."""

from collections.abc import Iterator, Sequence
from random import Random

import torch
from torch import Tensor

from infer_cache import KVPool, TableEdit
from infer_cache.sliding_window import first_block_in_window
from infer_engine.model_runner.graphs.checks import cache_rows
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.request import Request
from infer_engine.scheduling import RowEdit

Items = list[tuple[Request, int]]

LENGTHS = (65, 2, 257, 64, 513, 63, 256)
"""Tokens of sequences: around the sizes of blocks and of pieces that attention computes at once."""
LONG_LENGTHS = (5000, 4353)
"""By variant, tokens of the first sequence: of more pieces than the kernel of attention's work list makes at once."""
_CHUNK_STARTS = (0, 65, 130)
"""Where chunks of prompts begin."""
_BLOCKS_PER_ROW = 4
_BLOCKS_AT_ONCE = 256
"""Blocks that are looked at together: the KV pool has taken all memory but what steps need."""


class DummyBatches:
    """Batches of decodes, and of decodes and prompt chunks, each in two variants that have nothing in common."""

    def __init__(
        self,
        pool: KVPool,
        shapes: PaddedShapes,
        *,
        windows: Sequence[int | None],
        max_rows: int,
        max_seq_len: int,
        vocab_size: int,
    ) -> None:
        """Make batches for `shapes` of up to `max_rows` sequences of up to `max_seq_len` tokens.

        Args:
            pool: pool of keys and values.
            shapes: to which batches are padded.
            windows: by group of layers, the sliding window, or None.
            max_rows: sequences.
            max_seq_len: tokens of a sequence.
            vocab_size: ids are below it.
        """
        self._pool = pool
        self._shapes = shapes
        self._block_size = pool.block_size
        least = max_rows * -(-2 // pool.block_size)
        self._first_used = int(min(pool.num_blocks) > least)  # block 0 is no sequence's, if there are enough
        most = _BLOCKS_PER_ROW * max_rows + 64 + -(-LONG_LENGTHS[0] // pool.block_size)
        self._ends_of_used = [min(count, self._first_used + most) for count in pool.num_blocks]
        self._windows = windows
        self._max_rows = max_rows
        self._max_seq_len = max_seq_len
        self._vocab_size = vocab_size

    def fill(self, shape: BatchShape, *, variant: int, num_more: int = 0) -> tuple[Items, list[RowEdit]] | None:
        """Return the items of a batch that is padded to `shape`, and the edits of its block tables.

        Variant 0 has no padding if it can be avoided, and variant 1 as much as there can be; ids, lengths, blocks and
        rows differ too. The first of the decodes is long, if there is room. With `num_more` it is not, and block tables
        have room for so many further tokens of each sequence. None if the KV pool has no room for such a batch.
        """
        draw = Random(f"{shape} {variant}")  # noqa: S311 - any numbers do
        spare = [draw.sample(range(self._first_used, end), end - self._first_used) for end in self._ends_of_used]
        rows = draw.sample(range(self._max_rows), self._max_rows)
        counts = self._decodes(shape, variant) if shape.is_decode_only else self._chunks(shape, variant)
        if len(counts) > shape.num_seqs:
            return None
        items: Items = []
        edits: list[RowEdit] = []
        for number, count in enumerate(counts):
            num_left = len(counts) - number - 1
            most = self._most_tokens(spare, num_left=num_left) - num_more
            if count > 1:
                wanted = _CHUNK_STARTS[(number + variant) % len(_CHUNK_STARTS)] + count
            else:
                wanted = LENGTHS[(number + 3 * variant) % len(LENGTHS)]
                if number == num_more == 0:
                    room = (min(map(len, spare)) - num_left * _BLOCKS_PER_ROW) * self._block_size
                    wanted = max(wanted, min(LONG_LENGTHS[variant], room))
            length = min(wanted, most)
            start = length - count
            if start < (count == 1):  # a decode has a token before it
                return None
            row = rows.pop()
            ids = draw.choices(range(self._vocab_size), k=length + 1)
            prompt, generated = (ids[:1], ids[1:length]) if count == 1 else (ids, [])
            items.append((dummy_request(prompt, generated, num_computed=start, row=row), count))
            edits += [(row, edit) for edit in self._take_blocks(spare, start, length + num_more)]
        return items, edits

    def fill_with_nan(self, shape: BatchShape) -> tuple[Items, list[RowEdit]] | None:
        """Return a batch of `shape` whose sequences all begin with a token of NaN, so that all rows become NaN.

        They have block 0 in common. Decodes write their keys and values to it, prompts write none. None if block 0 is
        not left to this.
        """
        if self._first_used == 0:
            return None
        counts = self._decodes(shape, 0) if shape.is_decode_only else self._chunks(shape, 0)
        items: Items = []
        edits: list[RowEdit] = []
        for row, count in enumerate(counts):
            length = 1 + count
            if shape.is_decode_only:
                request = dummy_request([0], [0], num_computed=1, row=row)
            else:
                request = dummy_request([0] * length, num_computed=1, row=row)
                request.num_reused_tokens = length
            items.append((request, count))
            zeros = [0] * -(-length // self._block_size)
            edits += [(row, TableEdit(group, 0, zeros)) for group in range(len(self._windows))]
        return items, edits

    def write_noise(self) -> None:
        """Let the blocks of the batches hold noise, and all others NaN."""
        generator = torch.Generator(self._pool.device).manual_seed(0)
        for used, unused in self._caches():
            for part in used:
                cache_rows.fill_with_noise(part, generator)
            for part in unused:
                cache_rows.fill(part, torch.nan)

    def are_others_untouched(self) -> bool:
        """Return whether the blocks that no batch has still hold NaN."""
        found = [cache_rows.is_nan(part).all() for _, unused in self._caches() for part in unused]
        return not found or bool(torch.stack(found).all())

    def clear(self) -> None:
        """Let all blocks be zeros."""
        for layer in self._pool.layers:
            self._pool.key_cache(layer).zero_()
            self._pool.value_cache(layer).zero_()

    def _caches(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Yield, of each layer's keys and values, the blocks of the batches and the others, some at a time."""
        for layer in self._pool.layers:
            first, end = self._first_used, self._ends_of_used[self._pool.group(layer)]
            for cache in (self._pool.key_cache(layer), self._pool.value_cache(layer)):
                used, unused = (torch.split(part, _BLOCKS_AT_ONCE) for part in (cache[first:end], cache[end:]))
                yield list(used), [cache[:first], *unused]

    def _decodes(self, shape: BatchShape, variant: int) -> list[int]:
        return [1] * self._least(shape, shape.num_seqs if variant == 0 else 1)

    def _chunks(self, shape: BatchShape, variant: int) -> list[int]:
        """Return the tokens of each sequence: some decodes, and as few chunks as the rest takes."""
        num_tokens = self._least(shape, shape.num_tokens if variant == 0 else 2)
        num_decodes = min(3 + variant, shape.num_seqs - 1, num_tokens - 2)
        left = num_tokens - num_decodes
        longest = min(self._max_seq_len - 1, -(-left // 2) if shape.num_seqs - num_decodes > 1 and left > 3 else left)
        chunks = [longest] * (left // longest)
        if left % longest:
            chunks.append(left % longest)
        return [1] * num_decodes + chunks

    def _least(self, shape: BatchShape, least: int) -> int:
        """Return the fewest tokens, `least` or more, of a batch that is padded to `shape`."""
        is_decode_only = shape.is_decode_only
        while self._shapes.least(least, 1 if not is_decode_only else least, is_decode_only=is_decode_only) != shape:
            least += 1
        return least

    def _most_tokens(self, spare: Sequence[Sequence[int]], *, num_left: int) -> int:
        """Return how long the next sequence may be, so that `num_left` others have blocks too."""
        for_others = num_left * -(-2 // self._block_size)
        return min(self._max_seq_len - 1, *((len(ids) - for_others) * self._block_size for ids in spare))

    def _take_blocks(self, spare: Sequence[list[int]], start: int, length: int) -> Iterator[TableEdit]:
        """Take the blocks that a sequence of `length` tokens, computed from `start` on, attends to or writes."""
        for group, (ids, window) in enumerate(zip(spare, self._windows, strict=True)):
            first = first_block_in_window(start, window=window, block_size=self._block_size)
            yield TableEdit(group, first, [ids.pop() for _ in range(-(-length // self._block_size) - first)])
