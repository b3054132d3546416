"""`PrefixIndex`: which prompts a core has computed lately, to guess how much of another one its cache has."""

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 32
"""Tokens that are compared at once: prefixes are known in steps of this length."""


def prefix_keys(token_ids: Sequence[int], *, salt: str | None) -> list[int]:
    """Return a key for each prefix of whole blocks of a prompt, the shortest first.

    Equal prefixes with equal salts have equal keys, in this process. The keys are no secure hashes: a wrong guess
    costs some time, no correctness.
    """
    keys: list[int] = []
    key = hash(("prefix", salt))
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, *token_ids[start : start + BLOCK_TOKENS]))
        keys.append(key)
    return keys


class PrefixIndex:
    """The keys of the prefixes that one core has computed; of the least recently used ones it forgets the longest."""

    def __init__(self, *, max_tokens: int) -> None:
        """Remember as many tokens as the core's cache has room for."""
        self._max_keys = max(1, max_tokens // BLOCK_TOKENS)
        self._keys: OrderedDict[int, None] = OrderedDict()

    def num_known(self, keys: Sequence[int]) -> int:
        """Return how many of a prompt's blocks the core is likely to have."""
        return next((index for index, key in enumerate(keys) if key not in self._keys), len(keys))

    def add(self, keys: Sequence[int]) -> None:
        """Remember the prefixes of a prompt that goes to the core."""
        for key in reversed(keys):  # the shortest prefix last: the others are useless without it
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._max_keys:
            self._keys.popitem(last=False)
