"""`FreeExtents`: the free ids as extents, which are maximal ranges of consecutive ids.

    id      0  1  2  3  4  5  6  7  8  9        an extent is found by its first id (with its length)
    free    .  .  x  x  x  .  .  x  x  .        and by its last id (with its first), so that an id
                  ^-----^        ^--^           that is freed finds both neighbours in O(1)
                  2: 3           7: 2

Extents are kept in size classes, 2^(k-1) <= length < 2^k, and a bit mask says which classes have members. So an extent
at least half as long as the longest is found without a search. (The two-level idea of TLSF, Masmano et al. 2004.)
"""


class FreeExtents:
    """A set of free ids from which consecutive ones are taken."""

    __slots__ = ("_classes", "_classes_mask", "_first_of", "_length_of", "_num_free")

    def __init__(self, num_ids: int) -> None:
        """Start with the ids 0 to `num_ids - 1`."""
        self._length_of: dict[int, int] = {}
        self._first_of: dict[int, int] = {}
        # Dictionaries with no values: sets that keep the order of insertion, so that equal histories choose equal ids.
        self._classes: list[dict[int, None]] = [{} for _ in range(num_ids.bit_length() + 1)]
        self._classes_mask = 0
        self._num_free = num_ids
        self._insert(0, num_ids)

    @property
    def num_free(self) -> int:
        """Ids in the set."""
        return self._num_free

    def add(self, block_id: int) -> None:
        """Add an id that is not in the set."""
        first, length = block_id, 1
        if block_id - 1 in self._first_of:
            first = self._first_of[block_id - 1]
            length += self._remove(first)
        if block_id + 1 in self._length_of:
            length += self._remove(block_id + 1)
        self._insert(first, length)
        self._num_free += 1

    def take_at(self, first: int, count: int) -> range:
        """Take up to `count` consecutive ids from `first` on; none if no extent begins there."""
        length = self._length_of.get(first, 0)
        return self._take(first, 0, min(count, length)) if length and count else range(0)

    def take_from_longest(self, count: int) -> range:
        """Take up to `count` consecutive ids from one of the longest extents; at least one where any id is free.

        They come from its middle: the sequence that has the ids before the extent can grow into its first part, and
        the one that these ids are for into its last part. No sequence has ids before 0, so there they are the first.
        """
        first = next(iter(self._classes[self._classes_mask.bit_length() - 1]))
        length = self._length_of[first]
        count = min(count, length)
        return self._take(first, (length - count) // 2 if first else 0, count)

    def _take(self, first: int, offset: int, count: int) -> range:
        length = self._remove(first)
        taken = range(first + offset, first + offset + count)
        self._insert(first, offset)
        self._insert(taken.stop, length - offset - count)
        self._num_free -= count
        return taken

    def _insert(self, first: int, length: int) -> None:
        if not length:
            return
        self._length_of[first] = length
        self._first_of[first + length - 1] = first
        size_class = length.bit_length()
        self._classes[size_class][first] = None
        self._classes_mask |= 1 << size_class

    def _remove(self, first: int) -> int:
        length = self._length_of.pop(first)
        del self._first_of[first + length - 1]
        size_class = length.bit_length()
        del self._classes[size_class][first]
        if not self._classes[size_class]:
            self._classes_mask &= ~(1 << size_class)
        return length
