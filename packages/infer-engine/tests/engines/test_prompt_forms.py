"""Prompts as programs have them: arrays, tensors, numbers of other libraries, and vLLM's dicts."""

from typing import Any

import numpy as np
import pytest
import torch

from infer_engine.prompt_forms import read_prompt, read_prompts
from infer_engine.protocol import InvalidRequestError

IDS = [3, 7, 5]
ONE = {
    "list": IDS,
    "tuple": tuple(IDS),
    "range": range(3, 6),
    "array": np.array(IDS),
    "small integers": np.array(IDS, np.uint8),
    "numbers of NumPy": list(np.array(IDS)),
    "tensor": torch.tensor(IDS),
    "numbers of PyTorch": list(torch.tensor(IDS)),
    "ids of vLLM": {"prompt_token_ids": IDS},
    "an array in a dict": {"prompt_token_ids": np.array(IDS)},
    "ids with their text": {"prompt": "abc", "prompt_token_ids": tuple(IDS), "multi_modal_data": None},
    "text": "abc",
    "text of NumPy": np.str_("abc"),
    "text of vLLM": {"prompt": "abc"},
}


@pytest.mark.parametrize("form", ONE)
def test_a_prompt_is_taken_in_every_form_alone_and_among_others(form: str) -> None:
    prompt: Any = ONE[form]
    expected = "abc" if "text" in form and "ids" not in form else list(range(3, 6)) if form == "range" else IDS
    assert read_prompt(prompt) == expected
    assert read_prompts(prompt) == [expected]
    assert read_prompts([prompt, "d", [1, 2]]) == [expected, "d", [1, 2]]
    assert read_prompts(("d", prompt)) == ["d", expected]


@pytest.mark.parametrize("rows", [np.array([IDS, IDS]), torch.tensor([IDS, IDS]), [torch.tensor(IDS)] * 2])
def test_rows_are_prompts(rows: Any) -> None:
    assert read_prompts(rows) == [IDS, IDS]


def test_a_column_of_texts_and_a_generator_are_several_prompts() -> None:
    assert read_prompts(np.array(["a", "b"])) == ["a", "b"]
    assert read_prompts(each for each in ("a", IDS)) == ["a", IDS]
    assert read_prompts([]) == []


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (None, "`NoneType`"),
        (5, "`int`"),
        (b"abc", "`bytes`"),
        ([["a", "b"]], "`list`"),
        ([[1.5, 2.5]], "`list`"),
        (np.array([1.5]), "`float`"),
        ([np.array([[1, 2]])], "`ndarray`"),
        ({"text": "a"}, "a dict with `text`"),
        ({"prompt": "a", "multi_modal_data": {"image": 1}}, "`multi_modal_data`"),
        ({}, "a dict with nothing"),
    ],
)
def test_anything_else_is_refused_with_what_a_prompt_may_be(prompt: Any, named: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_prompts(prompt)
    assert named in caught.value.message
    assert "it must be a text, token ids (whole numbers in a list" in caught.value.message
    assert caught.value.param == "prompt"
