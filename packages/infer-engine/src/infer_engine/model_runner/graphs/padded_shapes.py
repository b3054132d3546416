"""`PaddedShapes`: the shapes of batches that steps are captured for."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from infer_engine.model_runner.inputs.forward_batch import BatchShape

MAX_CAPTURED_TOKENS = 512
"""Tokens of the largest captured step with prompts of most models, see `prompt_tokens`."""

LARGER_SIZES = (1024, 2048, 2304)
"""Tokens of larger ones, for small models: at last a whole chunk of a prompt, alone and beside 256 decodes."""


class PaddedShapes:
    """Shapes of steps of decodes, and of steps with prompts; a batch is padded to the least that holds it."""

    def __init__(self, *, max_seqs: int, max_tokens: int, max_prompt_tokens: int = MAX_CAPTURED_TOKENS) -> None:
        """Choose shapes for steps of up to `max_seqs` sequences and `max_tokens` tokens.

        Those with prompts have at most `max_prompt_tokens`.
        """
        self._decodes = [BatchShape(count, count, is_decode_only=True) for count in _decode_sizes(max_seqs)]
        most = min(max_prompt_tokens, max_tokens)
        buckets = [count for count in (16, 32, 64, 128, 256, 384, 512, *LARGER_SIZES) if count < most]
        self._mixed = [BatchShape(count, min(count, max_seqs), is_decode_only=False) for count in (*buckets, most)]
        self._decode_counts = [shape.num_tokens for shape in self._decodes]
        self._mixed_counts = [shape.num_tokens for shape in self._mixed]

    def __iter__(self) -> Iterator[BatchShape]:
        """Yield all shapes, the largest first."""
        yield from reversed(self._mixed)
        yield from reversed(self._decodes)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._mixed) + len(self._decodes)

    def least(self, num_tokens: int, num_seqs: int, *, is_decode_only: bool) -> BatchShape | None:
        """Return the least shape that holds a batch, or None if none does."""
        shapes, counts = (self._decodes, self._decode_counts) if is_decode_only else (self._mixed, self._mixed_counts)
        index = bisect_left(counts, num_tokens)
        if index == len(shapes) or num_seqs > shapes[index].num_seqs:
            return None
        return shapes[index]


def _decode_sizes(max_seqs: int) -> Sequence[int]:
    """Return 1, 2, 4, 8, 16, 24 ... 64, 80 ... 128, 160 ... and at last `max_seqs`."""
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 129, 16), *range(160, 257, 32), *range(320, max_seqs, 64)]
    return [*(size for size in sizes if size < max_seqs), max_seqs]
