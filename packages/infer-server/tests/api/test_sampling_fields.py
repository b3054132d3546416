"""The fields of bodies that say how to sample reach `SamplingParams` by their names."""

from typing import Any

import msgspec
import pytest

from infer_engine.protocol import SamplingParams
from infer_server.anthropic.request import MessagesBody
from infer_server.api.sampling_fields import SamplingFields, sampling_params
from infer_server.errors import ApiError
from infer_server.openai.chat.request import ChatBody
from infer_server.openai.completions.request import CompletionBody
from infer_server.openai.responses.request import ResponsesBody

VALUES = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "repetition_penalty": 2.0,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "allowed_token_ids": [5, 6],
    "bad_words": ["bad"],
    "min_tokens": 2,
    "stop": ["end"],
    "stop_token_ids": [7],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "ignore_eos": True,
    "seed": 3,
    "n": 2,
}
OTHER_FORMS = {"max_tokens", "logprobs", "prompt_logprobs", "logit_bias", "structured_outputs", "thinking_token_budget"}
BODIES: dict[type[msgspec.Struct], dict[str, Any]] = {
    CompletionBody: {"prompt": "x"},
    ChatBody: {"messages": [{"role": "user", "content": "x"}]},
    ResponsesBody: {"input": "x"},
    MessagesBody: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
}


class NewBody(SamplingFields, frozen=True, kw_only=True):
    """A body with one more sampling parameter."""

    min_tokens: int | None = None


@pytest.mark.parametrize("struct", BODIES)
def test_every_field_with_the_name_of_a_sampling_parameter_is_that_parameter(struct: type[msgspec.Struct]) -> None:
    sent = {name: value for name, value in VALUES.items() if name in struct.__struct_fields__}
    assert {"temperature", "top_p", "top_k"} <= set(sent)
    body = msgspec.convert({**BODIES[struct], **sent}, struct)
    params = sampling_params(body)
    for name, value in sent.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value), name


def test_there_is_no_other_sampling_parameter() -> None:
    assert set(SamplingParams.__struct_fields__) == set(VALUES) | OTHER_FORMS
    assert set(VALUES) <= set(CompletionBody.__struct_fields__) & set(ChatBody.__struct_fields__)


def test_a_parameter_is_added_by_declaring_its_field() -> None:
    assert sampling_params(NewBody(min_tokens=4)).min_tokens == 4
    assert sampling_params(NewBody(), max_tokens=None) == SamplingParams(max_tokens=None)


def test_errors_name_the_fields_as_the_body_does() -> None:
    with pytest.raises(ApiError) as refused:
        sampling_params(NewBody(), names={"max_tokens": "most"}, max_tokens=-5)
    assert refused.value.reply.error.param == "most"
    assert refused.value.reply.error.message.startswith("`most` is -5")
