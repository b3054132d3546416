"""Fill in the middle: the formats in which models get the text before and after the one that they write.

    [repository] name ([file] name text)* [file] name [prefix] text before [suffix] text after [middle]

What is left of `[prefix]` is written with texts of other files; some formats have the text after first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenizers

from infer_models.text.chat.special_tokens import is_always_control
from infer_models.text.encoding import TextEncoder, with_control_tokens_as_text
from infer_models.text.errors import TextTooLongError
from infer_models.text.files.sentencepiece_model import SPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillFormat:
    """Tokens of a format, as vocabularies spell them.

    Attributes:
        prefix: comes before the text before.
        suffix: comes before the text after.
        middle: comes last; None: the answer goes on with the text before.
        suffix_first: the text after comes before the text before.
        repository: comes before a name of the repository; None where there is no such token.
        file: comes before the name of each file; None where there is no such token.
        ends: end an answer beside the others, which do so too.
    """

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    repository: str | None = None
    file: str | None = None
    ends: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of the format."""
        named = (self.prefix, self.suffix, self.middle, self.repository, self.file, *self.ends)
        return tuple(token for token in named if token is not None)


def _angled(left: str, right: str, *, repository: str, file: str | None = None, ends: Sequence[str]) -> InfillFormat:
    prefix, suffix, middle = (f"{left}{word}{right}" for word in ("prefix", "suffix", "middle"))
    return InfillFormat(
        prefix=prefix, suffix=suffix, middle=middle, repository=repository, file=file, ends=("<|endoftext|>", *ends)
    )


_DEEPSEEK = tuple(f"<\uff5cfim▁{word}\uff5c>" for word in ("begin", "hole", "end"))  # with bars of full width

INFILL_FORMATS = (
    # Qwen, Granite 4, CodeGemma
    _angled(
        *("<|fim_", "|>"), repository="<|repo_name|>", file="<|file_sep|>", ends=("<|fim_pad|>", "<|file_separator|>")
    ),
    # StarCoder, Granite 3, Refact, Stable Code, CodeQwen
    _angled(
        *("<fim_", ">"),
        repository="<reponame>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>", "<filename>"),
    ),
    # SantaCoder
    _angled("<fim-", ">", repository="<fim-repo>", ends=("<fim-pad>",)),
    # DeepSeek Coder
    InfillFormat(prefix=_DEEPSEEK[0], suffix=_DEEPSEEK[1], middle=_DEEPSEEK[2], ends=("<|EOT|>",)),
    # Code Llama
    InfillFormat(prefix="▁<PRE>", suffix="▁<SUF>", middle="▁<MID>", ends=("▁<EOT>",)),
    InfillFormat(prefix="<PRE>", suffix="<SUF>", middle="<MID>", repository="<REPO>", ends=("<PAD>", "<EOT>")),
    # Codestral
    InfillFormat(prefix="[PREFIX]", suffix="[SUFFIX]", middle=None, suffix_first=True),
    # GLM 4.5
    InfillFormat(prefix="<|code_prefix|>", suffix="<|code_suffix|>", middle="<|code_middle|>", ends=("<|endoftext|>",)),
    # Falcon H1 Tiny Coder
    InfillFormat(prefix="<|prefix|>", suffix="<|suffix|>", middle="<|middle|>"),
    # Seed Coder
    InfillFormat(prefix="<[fim-prefix]>", suffix="<[fim-suffix]>", middle="<[fim-middle]>", suffix_first=True),
)
"""The formats of models, in the order in which they are looked for."""

INFILL_NAMES: Mapping[str, Sequence[str]] = {
    "prefix": ("fim_pre_token", "prefix_token"),
    "suffix": ("fim_suf_token", "suffix_token"),
    "middle": ("fim_mid_token", "middle_token"),
    "repository": ("fim_rep_token",),
    "file": ("fim_sep_token",),
    "pad": ("fim_pad_token",),
}
"""Names that files give the tokens of a format, older ones last."""

_REPOSITORY, _FILE = "myproject\n", "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Texts that llama.cpp puts where the names of the repository and of the file are, and before files without a token."""

_CHARACTERS_PER_TOKEN = 16
"""Characters of a text of which at most one token is kept, so that not all of a text that is cut is tokenized."""

_GUARD = "\u263a"
"""A character that no token has with others."""


def infill_format(named: Mapping[str, str], vocabulary: Mapping[str, int]) -> InfillFormat | None:
    """Return the format whose tokens files name, or else the first whose tokens are there; None: there is none.

    `named` has the special tokens by name.
    """
    told: dict[str, Any] = {
        part: named[name]
        for part, names in INFILL_NAMES.items()
        for name in reversed(names)
        if named.get(name) in vocabulary
    }
    if not {"prefix", "suffix"} <= told.keys():
        told = {}
    pads = (told.pop("pad"),) if "pad" in told else ()
    there = (
        each for each in INFILL_FORMATS if {each.prefix, each.suffix, each.middle or ""} - {""} <= vocabulary.keys()
    )
    found = next((each for each in there if told.get("prefix", each.prefix) == each.prefix), None)
    if found is None and "middle" in told:
        found = InfillFormat(prefix="", suffix="", middle=None)  # of no model that is known
    if found is None:
        return None
    found = replace(found, **told)
    return replace(
        found,
        repository=found.repository if found.repository in vocabulary else None,
        file=found.file if found.file in vocabulary else None,
        ends=tuple(text for text in (*found.ends, *pads) if text in vocabulary),
    )


class InfillEncoder:
    """Encodes the texts around one that is to be written. Immutable, and safe to use from any number of threads.

    Attributes:
        end_ids: ids of the tokens that end an answer.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        form: InfillFormat,
        *,
        bos_token_id: int | None,
        max_bytes_per_token: int | None,
    ) -> None:
        """Encode in the format `form`; `bos_token_id` begins a prompt where the tokenizer puts it before a text."""
        self._form = form
        self._ids = {text: found for text in form.tokens if (found := tokenizer.token_to_id(text)) is not None}
        self.end_ids = tuple(dict.fromkeys(self._ids.values()))
        first = tokenizer.encode("").ids[:1]
        self._beginning = first if first == [bos_token_id] else []
        control_ids = {
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special or is_always_control(token.content)
        }
        plain = with_control_tokens_as_text(tokenizer, control_ids.union(self.end_ids))
        self._encoder = TextEncoder(plain, max_bytes_per_token=max_bytes_per_token)
        guard = plain.encode(_GUARD)
        self._guard_ids = guard.ids if "".join(guard.tokens[:1]).startswith(SPACE) else []
        self._repository, self._file, self._snippet = (
            plain.encode(text).ids for text in (_REPOSITORY, _FILE, _SNIPPET)
        )

    def encode(
        self,
        prefix: str,
        suffix: str,
        *,
        files: Sequence[tuple[str, str]] | None = None,
        adds_beginning: bool = True,
        max_tokens: int,
        cuts: bool = False,
    ) -> list[int]:
        """Return the prompt's ids. Nothing in the texts becomes a token of the format, or another special one.

        Args:
            prefix: the text before.
            suffix: the text after.
            files: names and texts of other files; None writes no name of a repository and of a file either.
            adds_beginning: whether the prompt begins as other texts do.
            max_tokens: the most ids.
            cuts: cut what is too long: first the beginning of `files`, then that of `prefix` and the end of `suffix`,
                of which a quarter of the room is left at least.

        Raises:
            TextTooLongError: there are more than `max_tokens` ids, and more than cutting helps.
        """
        if cuts:
            most = max_tokens * _CHARACTERS_PER_TOKEN
            prefix, suffix, files = prefix[-most:], suffix[:most], _last_files(files, most)
        guard = _GUARD if self._guard_ids else ""  # the text after goes on: no space comes before its first word
        texts = [prefix, guard + suffix, *(text for name, content in files or () for text in (f"{name}\n", content))]
        before, after, *others = self._encoder.encode(
            texts, add_special_tokens=False, max_tokens=None if cuts else max_tokens
        )
        after = after[len(self._guard_ids) :]
        extra = self._extra(others) if files is not None else []
        beginning = self._beginning if adds_beginning else []
        middle = [] if self._form.middle is None else [self._ids[self._form.middle]]
        room = max_tokens - len(beginning) - 2 - len(middle)
        if room < (0 if cuts else len(before) + len(after) + len(extra)):
            raise TextTooLongError(max_tokens - room + len(before) + len(after) + len(extra))
        after = after[: max(room // 4, room - len(before))]
        before = _last(before, room - len(after))
        extra = _last(extra, room - len(after) - len(before))
        parts = [[self._ids[self._form.prefix], *before], [self._ids[self._form.suffix], *after]]
        first, second = reversed(parts) if self._form.suffix_first else parts
        return [*beginning, *extra, *first, *second, *middle]

    def _extra(self, files: Sequence[list[int]]) -> list[int]:
        """Return what comes before the tokens of the format, of the ids of names and texts of files, in turn."""
        form, extra = self._form, list[int]()
        if form.repository is not None:
            extra += [self._ids[form.repository], *self._repository]
        for name, content in zip(files[::2], files[1::2], strict=True):
            extra += [*(self._snippet if form.file is None else [self._ids[form.file], *name]), *content]
        if form.file is not None:
            extra += [self._ids[form.file], *self._file]
        return extra


def _last(token_ids: list[int], count: int) -> list[int]:
    return token_ids[max(len(token_ids) - count, 0) :]


def _last_files(files: Sequence[tuple[str, str]] | None, most: int) -> Sequence[tuple[str, str]] | None:
    """Return the last of `files`, which have `most` characters together at most, but for the first of them."""
    if files is None:
        return None
    kept: list[tuple[str, str]] = []
    for name, content in reversed(files):
        if most <= 0:
            break
        kept.insert(0, (name[:most], content[-most:]))
        most -= len(name) + len(content)
    return kept
