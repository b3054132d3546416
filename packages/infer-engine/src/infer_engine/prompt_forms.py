"""Reads prompts as programs have them: texts, token ids in lists, arrays or tensors, and vLLM's dicts."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex

from infer_engine.frontend.completion import Prompt
from infer_engine.protocol import InvalidRequestError

_TEXT, _IDS = "prompt", "prompt_token_ids"


class Array(Protocol):
    """An array of NumPy, a tensor of PyTorch, a column of pandas."""

    def tolist(self) -> Any:
        """Return the elements as Python has them."""


PromptForm = str | Sequence[SupportsIndex] | Array | Mapping[str, Any]
"""A prompt as programs have it."""


def read_prompts(prompts: PromptForm | Iterable[PromptForm]) -> list[Prompt]:
    """Return one prompt or several as a list.

    Raises:
        InvalidRequestError: one of them is no prompt.
    """
    given = _elements(prompts)
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [read_prompt(given)]
    several = list(given)
    if several and isinstance(_elements(several[0]), int):
        return [read_prompt(several)]
    return [read_prompt(each) for each in several]


def read_prompt(prompt: Any) -> Prompt:
    """Return a prompt as a text or as a list of token ids.

    Raises:
        InvalidRequestError: it is none.
    """
    given = _elements(prompt)
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return _read_dict(given)
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        try:
            return [operator.index(each) for each in given]
        except TypeError:
            pass
    raise _refusal(f"an object of the type `{type(prompt).__name__}`")


def _read_dict(prompt: Mapping[str, Any]) -> Prompt:
    """Return the prompt in a dict; ids count before the text that they were made of."""
    given = {name: value for name, value in prompt.items() if value is not None}
    ids, text = given.pop(_IDS, None), given.pop(_TEXT, None)
    if given or (ids is None and text is None):
        raise _refusal(f"a dict with {', '.join(f'`{name}`' for name in prompt) or 'nothing'}")
    return read_prompt(text if ids is None else ids)


def _elements(given: Any) -> Any:
    """Return what an array or a tensor, also of one number, holds; anything else as it is."""
    return given.tolist() if hasattr(given, "tolist") else given


def _refusal(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`prompt` is {what}; it must be a text, token ids (whole numbers in a list, a tuple, an array or a tensor), "
        f'`{{"{_TEXT}": text}}` or `{{"{_IDS}": ids}}`.',
        param="prompt",
    )
