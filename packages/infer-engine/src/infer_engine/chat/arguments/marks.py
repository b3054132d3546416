"""`MarkGrammar`: expressions of the texts around calls, of which some are special tokens."""

from collections.abc import Iterator, Mapping, Sequence

from infer_engine.chat.call_marks import MAX_BLANKS
from infer_engine.structured.grammar_text import escaped, quoted

ANY_TEXT = r"(.|\n)*"
BLANKS = rf"[ \t\r\n]{{0,{MAX_BLANKS}}}"
RULES = rf"""
TEXT: /{ANY_TEXT}/
GAP: /{BLANKS}/
BLANK: /[ \n]?/
"""
"""What the expressions need."""


class MarkGrammar:
    """Makes the expressions for one vocabulary."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        """Take the ids of the marks that are special tokens, by which alone a grammar can ask for them."""
        self._token_ids = dict(token_ids)

    def literal(self, text: str) -> str:
        """Return the expression of `text`; behind a special token there may be a space, a line break or nothing."""
        for mark, token_id in self._token_ids.items():
            if mark in text:
                before, _, after = text.partition(mark)
                rest = after.lstrip()
                blank = "" if rest == after else "BLANK "
                return f"{self.literal(before)} <[{token_id}]> {blank}{self.literal(rest)}"
        return quoted(text) if text else ""

    def mark(self, text: str) -> str:
        """Return the expression of `text`, in which a line break may be any little white space or none."""
        return " GAP ".join(self.literal(piece) for piece in text.splitlines() if piece)

    def after_text(
        self, pattern: str, marks: Sequence[str], name: str, rules: list[str], but_not: Sequence[str] = ()
    ) -> str:
        """Return the expression of a text that matches `pattern`, up to the first place where `marks` follow it.

        White space may be between them, and as in `mark`. Rules whose names begin with `name` are added to `rules`.
        What comes before the first special token, or all of it, matches none of `but_not`.
        """
        others = "".join(f" & ~/{each}/" for each in but_not)
        pieces = [self._split(piece) for mark in marks for piece in mark.splitlines() if piece]
        parts: list[str | int] = [pattern]
        for index, piece in enumerate(pieces):
            for part in (BLANKS, *piece) if index else piece:
                if isinstance(part, str) and isinstance(parts[-1], str):
                    parts[-1] += part
                else:
                    parts.append(part)
        if len(parts) == 1:
            rules.append(f"{name}[lazy]: /{parts[0]}/{others}")
            return name
        written = []
        for number, part in enumerate(parts):
            if isinstance(part, int):
                written.append(f"<[{part}]>")
            else:
                terminal = f"{name}_{number}".upper()
                rules.append(f"{terminal}: /{part}/{others if number == 0 else ''}")
                written.append(terminal)
        return " ".join(written)

    def _split(self, text: str) -> Iterator[str | int]:
        """Yield the patterns of `text` between special tokens, and the ids of these."""
        for mark, token_id in self._token_ids.items():
            if mark in text:
                before, _, after = text.partition(mark)
                yield from self._split(before)
                yield token_id
                yield from self._split(after)
                return
        if text:
            yield escaped(text)
