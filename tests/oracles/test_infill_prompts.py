"""Prompts of `/infill` for vocabularies that llama.cpp publishes, put together as its server does.

Its rules: `format_prompt_infill` in `tools/server/server-common.cpp`. The ids of the texts are those that its tests
expect. Two things differ here for a reason: a prompt's beginning comes before parts of other files, where models have
seen it; and as Code Llama and Codestral are published, there is no space before the text after the gap.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tokenizers

from infer_models.text import Tokenizer
from infer_models.text.files.gguf_tokenizer import read_gguf_tokenizer

Figure = Callable[[str, int, Sequence[str]], None]


@dataclass(frozen=True)
class Spelled:
    """What llama.cpp finds in a vocabulary by its spelling; `added` are tokens that a vocabulary of a family lacks."""

    prefix: str
    suffix: str
    middle: str
    repository: str | None = None
    file: str | None = None
    beginning: str | None = None
    added: bool = False


_STARCODER = Spelled("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
VOCABULARIES: Mapping[str, Spelled] = {
    "starcoder": _STARCODER,
    "refact": replace(_STARCODER, repository="<reponame>"),
    "deepseek-coder": Spelled(
        "<\uff5cfim▁begin\uff5c>",
        "<\uff5cfim▁hole\uff5c>",
        "<\uff5cfim▁end\uff5c>",
        beginning="<\uff5cbegin▁of▁sentence\uff5c>",
    ),
    "qwen2": Spelled(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        added=True,
    ),
}
_BETWEEN_TEXTS = "\n__ggml_vocab_test__\n"


def _texts(path: Path) -> list[tuple[str, list[int]]]:
    """Return the texts next to a vocabulary, with the ids that are expected of them."""
    texts = path.with_name(path.name + ".inp").read_bytes().decode().removesuffix(_BETWEEN_TEXTS).split(_BETWEEN_TEXTS)
    lines = path.with_name(path.name + ".out").read_bytes().decode().removesuffix("\n").split("\n")
    ids = [[int(each) for each in line.split()] for line in lines]
    return [(text, each) for text, each in zip(texts, ids, strict=True) if unicodedata.is_normalized("NFC", text)]


def _tokenizer(path: Path, spelled: Spelled) -> Tokenizer:
    files = read_gguf_tokenizer(path)
    if spelled.added:
        tokens = (spelled.prefix, spelled.suffix, spelled.middle, spelled.repository, spelled.file)
        files.tokenizer.add_tokens([tokenizers.AddedToken(each, normalized=False) for each in tokens if each])
    return Tokenizer(files.tokenizer, named_tokens=files.named_tokens)


def _as_llama_cpp(
    tokenizer: Tokenizer, spelled: Spelled, before: list[int], after: list[int], files: Sequence[tuple[str, list[int]]]
) -> list[int | None]:
    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    one = tokenizer.token_to_id
    ids: list[int | None] = [one(spelled.beginning)] if spelled.beginning else []
    if spelled.repository:
        ids += [one(spelled.repository), *plain("myproject\n")]
    for name, content in files:
        ids += [one(spelled.file), *plain(f"{name}\n")] if spelled.file else plain("\n\n--- snippet ---\n\n")
        ids += content
    if spelled.file:
        ids += [one(spelled.file), *plain("filename\n")]
    return [*ids, one(spelled.prefix), *before, one(spelled.suffix), *after, one(spelled.middle)]


def test_prompts_around_a_gap_are_llama_cpps(llama_cpp: Path, figure: Figure) -> None:
    faults, cases = [], 0
    for name, spelled in VOCABULARIES.items():
        path = llama_cpp / "models" / f"ggml-vocab-{name}.gguf"
        tokenizer = _tokenizer(path, spelled)
        assert tokenizer.infill is not None
        texts = _texts(path)
        for index, (before, before_ids) in enumerate(texts):
            (after, after_ids), (other, other_ids) = texts[index - 1], texts[index - 2]
            for num_files in range(3):
                expected = _as_llama_cpp(tokenizer, spelled, before_ids, after_ids, [("a.py", other_ids)] * num_files)
                found = tokenizer.infill.encode(before, after, files=[("a.py", other)] * num_files, max_tokens=100_000)
                cases += 1
                if found != expected:
                    faults.append(f"{name}: {before!r}, {after!r}: {found} instead of {expected}")
    figure("infill", cases, faults)


@pytest.mark.parametrize("text", ["return 1", " two", "\n\nthree", "\tfour", "5", ""])
def test_codestrals_text_after_a_gap_has_no_space_of_the_tokenizers(llama_cpp: Path, text: str) -> None:
    """Mistral's own tokenizer drops a character that it puts before this text, and the space before that."""
    files = read_gguf_tokenizer(llama_cpp / "models" / "ggml-vocab-llama-spm.gguf")
    files.tokenizer.add_special_tokens(["[PREFIX]", "[SUFFIX]"])
    tokenizer = Tokenizer(files.tokenizer, named_tokens=files.named_tokens)
    assert tokenizer.infill is not None
    found = tokenizer.infill.encode("def f():", text, max_tokens=100)
    guarded = tokenizer.encode(f"\u2603{text}", add_special_tokens=False)
    guard = tokenizer.encode("\u2603", add_special_tokens=False)
    prefix = tokenizer.encode("def f():", add_special_tokens=False)
    ids = {name: tokenizer.token_to_id(name) for name in ("<s>", "[SUFFIX]", "[PREFIX]")}
    assert found == [ids["<s>"], ids["[SUFFIX]"], *guarded[len(guard) :], ids["[PREFIX]"], *prefix]
