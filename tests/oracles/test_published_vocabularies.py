"""Vocabularies that llama.cpp publishes, with the ids that its own tests expect of their texts.

Each text is a case: its ids are those of the file next to the vocabulary, where there is one; decoded they are the
text; and tokens that come one by one join to the same. Texts of the others serve where a vocabulary has none.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from infer_models.errors import CheckpointError
from infer_models.text import IncrementalDetokenizer, Tokenizer

Figure = Callable[[str, int, Sequence[str]], None]
_NO_TEXT_MODEL = "an embedding model's: it writes no text"
_NOT_READ: Mapping[str, str] = {
    "ggml-vocab-bert-bge.gguf": _NO_TEXT_MODEL,
    "ggml-vocab-nomic-bert-moe.gguf": _NO_TEXT_MODEL,
}
"""Vocabularies that are left out, and why."""
_COMPOSED: Mapping[str, str] = {
    "ggml-vocab-command-r.gguf": "its `tokenizer.json` has the normalizer NFC",
    "ggml-vocab-mpt.gguf": "its `tokenizer.json` has the normalizer NFC",
    "ggml-vocab-qwen2.gguf": "its `tokenizer.json` has the normalizer NFC",
    "ggml-vocab-qwen35.gguf": "its `tokenizer.json` has the normalizer NFC, which llama.cpp leaves out",
}
"""Vocabularies whose texts are composed first: what llama.cpp expects of a text that is not in NFC is another's ids."""

_BETWEEN_TEXTS = "\n__ggml_vocab_test__\n"
_SAMPLE = ("deepseek-coder", "falcon", "gpt-2", "llama-spm", "phi-3", "refact")


def _texts_of(path: Path) -> list[str]:
    """Return the texts next to a vocabulary; none where it has no file of them."""
    texts = path.with_name(path.name + ".inp")
    if not texts.exists():
        return []
    return texts.read_bytes().decode().removesuffix(_BETWEEN_TEXTS).split(_BETWEEN_TEXTS)


def _ids_of(path: Path) -> list[list[int]]:
    ids = path.with_name(path.name + ".out")
    lines = ids.read_bytes().decode().removesuffix("\n").split("\n") if ids.exists() else []
    return [[int(each) for each in line.split()] for line in lines]


def _fault(tokenizer: Tokenizer, text: str, ids: Sequence[int] | None, composed: str) -> str | None:
    """Return what is wrong with a text; `composed` is what its tokens must join to."""
    found = tokenizer.encode(text, add_special_tokens=False)
    if ids is not None and found != ids and composed == text:
        return f"{found} instead of {ids}"
    if tokenizer.decode(found, skip_special_tokens=False) != composed:
        return "decoded it is another text"
    stream = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=False)
    pieces = [*(stream.add(token_id) for token_id in found), stream.finish()]
    return None if "".join(pieces) == composed else "in a stream it is another text"


def _compared(path: Path, shared: Sequence[str]) -> tuple[int, list[str]]:
    """Return how many texts a vocabulary was asked, and what differs."""
    texts = _texts_of(path)
    expected: Sequence[list[int] | None] = _ids_of(path) or [None] * len(shared)
    texts = texts or list(shared)
    try:
        tokenizer = Tokenizer.from_folder(path)
    except CheckpointError as error:
        return len(texts), [f"{path.name}: {error}"] * len(texts)
    faults = []
    for text, ids in zip(texts, expected, strict=True):
        composed = unicodedata.normalize("NFC", text) if path.name in _COMPOSED else text
        fault = _fault(tokenizer, text, ids, composed)
        if fault is not None:
            faults.append(f"{path.name}: {text!r}: {fault}")
    return len(texts), faults


def _vocabularies(llama_cpp: Path) -> dict[str, Path]:
    paths = sorted((llama_cpp / "models").glob("ggml-vocab-*.gguf"))
    return {path.stem.removeprefix("ggml-vocab-"): path for path in paths if path.name not in _NOT_READ}


def _all_compared(vocabularies: Mapping[str, Path], names: Sequence[str]) -> tuple[int, list[str]]:
    shared = next(filter(None, map(_texts_of, vocabularies.values())))
    results = [_compared(vocabularies[name], shared) for name in names]
    return sum(num for num, _ in results), [fault for _, faults in results for fault in faults]


def test_published_vocabularies_give_the_expected_ids(llama_cpp: Path, figure: Figure) -> None:
    vocabularies = _vocabularies(llama_cpp)
    figure("vocabularies", *_all_compared(vocabularies, _SAMPLE))


@pytest.mark.full
def test_all_published_vocabularies_give_the_expected_ids(llama_cpp: Path, figure: Figure) -> None:
    vocabularies = _vocabularies(llama_cpp)
    figure("vocabularies", *_all_compared(vocabularies, list(vocabularies)))
