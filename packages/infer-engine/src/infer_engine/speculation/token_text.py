"""`TokenText`: token ids in one array that grows, in which the longest match of some last tokens is found."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_MATCH = 32
"""Most last tokens that are looked for."""
_FEW = 4
"""Tokens, or candidates, that are taken one by one: an operation on arrays costs as much."""
_BITS = 21
"""Bits of a token id; three ids are one number."""
_ID = (1 << _BITS) - 1
_NUM_REMAINDERS = 65_521
"""A prime number: keys that differ in one token have different remainders."""


class Match(NamedTuple):
    """A place where some last tokens came before.

    Attributes:
        position: where the token behind them is.
        length: how many of the last tokens are equal.
    """

    position: int
    length: int


NO_MATCH = Match(0, 0)


class TokenText:
    """Token ids, of which the earliest are dropped when there are too many.

    The last two or three tokens at each place are a number. A search compares the numbers of all places at once: of
    32,768 in about 10 us. So nothing is indexed, and a long prompt takes 12 bytes a token. Most numbers that are
    nowhere are known by their remainders alone.

    Attributes:
        num_dropped: how many tokens were dropped at the beginning so far.
    """

    __slots__ = ("_has_remainder", "_ids", "_keys", "_length", "_max_tokens", "_shortest", "num_dropped")

    def __init__(self, *, max_tokens: int, shortest_match: int = 2) -> None:
        """Begin with none, and keep at least half of `max_tokens` of the latest.

        `shortest_match` is how many last tokens a match has at least: 2 or 3.
        """
        self._ids: npt.NDArray[np.int32] = np.zeros(256, np.int32)
        self._keys: npt.NDArray[np.int64] = np.zeros(256, np.int64)  # of the tokens up to each place
        self._has_remainder = bytearray(_NUM_REMAINDERS)  # of the keys of all places but the last one, and of others
        self._length = 0
        self._max_tokens = max_tokens
        self._shortest = shortest_match
        self.num_dropped = 0

    @property
    def num_appended(self) -> int:
        """Tokens that were appended so far, the dropped ones included."""
        return self.num_dropped + self._length

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return self._length

    def append(self, token_ids: Sequence[int]) -> None:
        """Append `token_ids`."""
        start, end = self._length, self._length + len(token_ids)
        if end > len(self._ids):
            self._ids = np.concatenate([self._ids[:start], np.zeros(end, np.int32)])
            self._keys = np.concatenate([self._keys[:start], np.zeros(end, np.int64)])
        self._ids[start:end] = token_ids
        self._length = end
        self._add_keys(start, end)
        self._add_remainders(max(0, start - 1), end - 1)
        if end > self._max_tokens:
            num_dropped = end - self._max_tokens // 2
            self._ids, self._keys = self._ids[num_dropped:end].copy(), self._keys[num_dropped:end].copy()
            self._length -= num_dropped
            self.num_dropped += num_dropped

    def _add_keys(self, start: int, end: int) -> None:
        if end - start <= _FEW:
            for place in range(start, end):
                first = max(0, place + 1 - self._shortest)
                self._keys[place] = _key(self._ids[first : place + 1].tolist())
            return
        ids = self._ids[max(0, start + 1 - self._shortest) : end].astype(np.int64) & _ID
        keys = ids.copy()
        for back in range(1, self._shortest):
            keys[back:] |= ids[: len(ids) - back] << (back * _BITS)
        self._keys[start:end] = keys[len(keys) - (end - start) :]

    def _add_remainders(self, start: int, end: int) -> None:
        if end - start <= _FEW:
            for key in self._keys[start:end].tolist():
                self._has_remainder[key % _NUM_REMAINDERS] = 1
        else:
            np.frombuffer(self._has_remainder, np.uint8)[self._keys[start:end] % _NUM_REMAINDERS] = 1

    def read(self, position: int, count: int) -> list[int]:
        """Return up to `count` tokens from `position` on."""
        tokens: list[int] = self._ids[position : min(position + count, self._length)].tolist()
        return tokens

    def longest_match(self, last_tokens: Sequence[int]) -> Match:
        """Return where most of `last_tokens`, counted from the end of these, came before the last token, the latest.

        No match is longer than they are.
        """
        ids, length = self._ids, self._shortest
        key = _key(last_tokens[-length:])
        if len(last_tokens) < length or not self._has_remainder[key % _NUM_REMAINDERS]:
            return NO_MATCH
        is_there = self._keys[length - 1 : max(0, self._length - 1)] == key
        places = np.flatnonzero(is_there) + (length - 1)
        while len(places) > _FEW and length < len(last_tokens):
            before = places[places >= length]
            kept = before[ids[before - length] == last_tokens[-1 - length]]
            if not len(kept):
                break
            places = kept
            length += 1
        best = NO_MATCH
        for place in places[-_FEW:].tolist():
            count = length
            while count < len(last_tokens) and place >= count and ids[place - count] == last_tokens[-1 - count]:
                count += 1
            best = max(best, Match(place + 1, count), key=lambda each: (each.length, each.position))
        return best


def _key(token_ids: Sequence[int]) -> int:
    """Return the number of up to three tokens."""
    key = 0
    for token_id in token_ids:
        key = key << _BITS | token_id & _ID
    return key
