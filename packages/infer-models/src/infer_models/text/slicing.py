"""Goes through long texts in slices, so that other threads can run in between."""

from collections.abc import Callable, Iterator

# Python's global lock is kept while a slice is gone through: a millisecond or two.
SLICE_LENGTH = 65_536


def slices(text: str) -> Iterator[str]:
    """Yield `text` in slices of about `SLICE_LENGTH` characters. Surrogates that make a pair stay together."""
    start = 0
    while start < len(text):
        end = start + SLICE_LENGTH
        if "\ud800" <= text[end - 1 : end] <= "\udbff" and "\udc00" <= text[end : end + 1] <= "\udfff":
            end += 1
        yield text[start:end]
        start = end


def change_in_slices(text: str, change: Callable[[str], str]) -> str:
    """Return `text` with `change` applied, which must not depend on more than a character or a surrogate pair."""
    if len(text) <= SLICE_LENGTH:
        return change(text)
    return "".join(change(piece) for piece in slices(text))
