"""The tokenizer that tests of other packages are given."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infer_proofs.models import save_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(folder, vocab_size=320)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


# Without "<" no text spells a special token, which decoding leaves out.
@given(text=st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"])))
def test_any_other_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert ids[0] == 1
    assert max(ids) < tokenizer.get_vocab_size() == 320
    assert tokenizer.decode(ids) == text


def test_pairs_of_letters_are_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(" a ab", add_special_tokens=False).tokens == ["Ġa", "Ġa", "b"]


@pytest.mark.parametrize("vocab_size", [258, 962])
def test_a_vocabulary_that_cannot_be_filled_is_refused(tmp_path: Path, vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"`vocab_size` is {vocab_size}; it must be from 259 to 961"):
        save_tiny_tokenizer(tmp_path, vocab_size=vocab_size)
