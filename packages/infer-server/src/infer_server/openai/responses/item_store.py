"""`ItemStore`: the items of recent responses, so that clients may refer to them instead of sending them again.

It is a memory of this process with bounds: what was used longest ago is forgotten first, a restart forgets all, and
each tenant finds its own alone, within one bound for all. Nothing depends on it but references: whoever sends whole
conversations needs none.

An item of an answer is found by its id. Items of inputs are kept once each, whatever the number of responses that had
them; each response also keeps the list of its items.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

MAX_BYTES = 32 * 2**20
MAX_ENTRIES = 20_000

Item = dict[str, Any]


class ItemStore:
    """Keeps the items of responses, by their owners."""

    def __init__(self, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        """Keep at most `max_entries` items and responses, whose JSON has at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[str | None, str], bytes] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """The bytes of all that is kept."""
        return self._num_bytes

    def __len__(self) -> int:
        """Return how many items and responses are kept."""
        return len(self._entries)

    def keep(self, response_id: str, given: Sequence[Item], answered: Sequence[Item], *, owner: str | None) -> None:
        """Keep a response of `owner`: the items that were `given`, and those that `answered`, which have ids."""
        keys = [self._put(owner, _key_of(encoded), encoded) for encoded in map(msgspec.json.encode, given)]
        keys += [self._put(owner, item["id"], msgspec.json.encode(item)) for item in answered]
        self._put(owner, response_id, msgspec.json.encode(keys))
        while self._num_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            _, forgotten = self._entries.popitem(last=False)
            self._num_bytes -= len(forgotten)

    def item(self, item_id: str, *, owner: str | None) -> Item | None:
        """Return the item of an answer to `owner`; None: it is not kept."""
        found = self._get(owner, item_id)
        return found if isinstance(found, dict) else None

    def conversation(self, response_id: str, *, owner: str | None) -> list[Item] | None:
        """Return all items of a response to `owner`, those that were given first; None: not all are kept."""
        keys = self._get(owner, response_id)
        if not isinstance(keys, list):
            return None
        items = [self._get(owner, key) for key in keys]
        return None if any(item is None for item in items) else items

    def _put(self, owner: str | None, key: str, encoded: bytes) -> str:
        self._num_bytes += len(encoded) - len(self._entries.get((owner, key), b""))
        self._entries[owner, key] = encoded
        self._entries.move_to_end((owner, key))
        return key

    def _get(self, owner: str | None, key: str) -> Any:
        encoded = self._entries.get((owner, key))
        if encoded is None:
            return None
        self._entries.move_to_end((owner, key))
        return msgspec.json.decode(encoded)


def _key_of(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()
