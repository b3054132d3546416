"""Encodes texts to ids, within a limit and without holding up other threads."""

import itertools
from collections.abc import Collection, Sequence

import tokenizers
from tokenizers import models

from infer_models.text.errors import TextTooLongError
from infer_models.text.files.scored_pieces import is_merged_here
from infer_models.text.slicing import change_in_slices


class TextEncoder:
    """Encodes texts. Other Python threads run on meanwhile, however long the texts.

    `tokenizers.Tokenizer.encode` keeps Python's global lock for as long as it takes, half a second per megabyte;
    `encode_batch_fast`, which gives the same ids, is without it, and faster for short texts too. Reading the ids needs
    the lock: so a text over the limit is refused before by a bound.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, max_bytes_per_token: int | None) -> None:
        """No token stands for more than `max_bytes_per_token` bytes of a text, if that is known."""
        self._tokenizer = tokenizer
        self._max_bytes_per_token = max_bytes_per_token

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool, max_tokens: int | None, num_other_tokens: int = 0
    ) -> list[list[int]]:
        """Return the ids of each text. Lone surrogates become U+FFFD.

        Raises:
            TextTooLongError: the texts have, with `num_other_tokens`, more than `max_tokens` tokens together.
        """
        valid = [_encodable(text) for text in texts]
        if max_tokens is not None and self._max_bytes_per_token is not None:
            num_bytes = sum(len(text) if text.isascii() else len(text.encode()) for text in valid)
            fewest_tokens = -(-num_bytes // self._max_bytes_per_token)
            _check_length(num_other_tokens + fewest_tokens, max_tokens)
        encodings = self._tokenizer.encode_batch_fast(valid, add_special_tokens=add_special_tokens)
        if max_tokens is not None:
            _check_length(num_other_tokens + sum(map(len, encodings)), max_tokens)
        return [encoding.ids for encoding in encodings]


def with_control_tokens_as_text(tokenizer: tokenizers.Tokenizer, control_ids: Collection[int]) -> tokenizers.Tokenizer:
    """Return a copy that encodes the tokens of `control_ids` as any other text, and adds nothing to a text.

    It has no decoder.

    A switch on the shared tokenizer would race, hence a copy. Both share the model, the largest part by far.
    """
    copy = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        copy.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        copy.pre_tokenizer = tokenizer.pre_tokenizer
    # Tokens outside of the model get their ids in the order in which they are added.
    in_order = sorted(tokenizer.get_added_tokens_decoder().items())
    for is_control, group in itertools.groupby(in_order, key=lambda entry: entry[0] in control_ids):
        add = copy.add_special_tokens if is_control else copy.add_tokens
        add([token for _, token in group])
    copy.encode_special_tokens = True
    return copy


def without_first_space(plain: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer for text that goes on after other text; `plain` itself where it makes no difference.

    `plain` comes from `with_control_tokens_as_text`. Some tokenizers put a space before a text's first word, but
    not after a special token within the text.
    """
    shell = tokenizers.Tokenizer(models.BPE())
    if plain.pre_tokenizer is None or is_merged_here(plain):
        return plain
    shell.pre_tokenizer = plain.pre_tokenizer
    description = shell.to_str()
    continuing = description.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
    if continuing == description:
        return plain
    special_ids = {token_id for token_id, token in plain.get_added_tokens_decoder().items() if token.special}
    copy = with_control_tokens_as_text(plain, special_ids)
    copy.pre_tokenizer = tokenizers.Tokenizer.from_str(continuing).pre_tokenizer
    return copy


def _check_length(num_tokens: int, max_tokens: int) -> None:
    if num_tokens > max_tokens:
        raise TextTooLongError(num_tokens)


def _encodable(text: str) -> str:
    """Return `text` with lone surrogates, which JSON can carry but UTF-8 cannot, as U+FFFD."""
    return text if text.isascii() else change_in_slices(text, _without_lone_surrogates)


def _without_lone_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
