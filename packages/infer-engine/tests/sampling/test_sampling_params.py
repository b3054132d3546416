"""Every limit of `SamplingParams` is kept, and a refusal names the field, the value and what is allowed."""

import math
import re
from typing import Any

import msgspec
import pytest

from infer_engine.protocol import SamplingParams, StructuredOutputs

ALLOWED: list[dict[str, Any]] = [
    {"repetition_penalty": 1e-9},
    {"repetition_penalty": 10.0},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"presence_penalty": 2.0, "frequency_penalty": -2.0},
    {"logit_bias": {0: -100.0, 5: 100.0}},
    {"logit_bias": dict.fromkeys(range(1024), 0.5)},
    {"min_tokens": 0},
    {"min_tokens": 128},
    {"min_tokens": 7, "max_tokens": 7},
    {"min_tokens": 10**9, "max_tokens": None},
    {"stop_token_ids": (0, 10**9)},
    {"logprobs": None},
    {"logprobs": 0},
    {"logprobs": 20},
    {"n": 1},
    {"n": 128},
    {"stop": tuple("x" * length for length in range(961, 1025))},
    {"top_p": 1e-6},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -2}, "`max_tokens` is -2; it must be a whole number of at least 0, or -1 for no limit."),
    ({"max_tokens": 2.5}, "`max_tokens` is 2.5; it must be a whole number of at least 0, or -1 for no limit."),
    ({"temperature": -0.1}, "`temperature` is -0.1; it must be a number in [0, 100]."),
    ({"temperature": "1"}, "`temperature` is '1'; it must be a number in [0, 100]."),
    ({"temperature": None}, "`temperature` is None; it must be a number in [0, 100]."),
    ({"top_p": -0.1}, "`top_p` is -0.1; it must be a number in [0, 1]."),
    ({"top_k": 1.5}, "`top_k` is 1.5; it must be a whole number of at least 1, or 0 or -1 for all."),
    ({"top_k": -2}, "`top_k` is -2; it must be a whole number of at least 1, or 0 or -1 for all."),
    ({"min_p": 1.1}, "`min_p` is 1.1; it must be a number in [0, 1]."),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` is 0.0; it must be a number in (0, 10]."),
    ({"repetition_penalty": 10.01}, "`repetition_penalty` is 10.01; it must be a number in (0, 10]."),
    ({"presence_penalty": -2.01}, "`presence_penalty` is -2.01; it must be a number in [-2, 2]."),
    ({"presence_penalty": 2.01}, "`presence_penalty` is 2.01; it must be a number in [-2, 2]."),
    ({"frequency_penalty": -2.01}, "`frequency_penalty` is -2.01; it must be a number in [-2, 2]."),
    ({"frequency_penalty": 2.01}, "`frequency_penalty` is 2.01; it must be a number in [-2, 2]."),
    ({"logit_bias": [1]}, "`logit_bias` is [1]; it must be a mapping from token ids to numbers."),
    ({"logit_bias": {-1: 0.0}}, "`logit_bias` is -1; it must be token ids of at least 0."),
    ({"logit_bias": {"5": 1.0}}, "`logit_bias` is '5'; it must be token ids of at least 0."),
    ({"logit_bias": {3: 1.0, 4: 100.5}}, "`logit_bias` is 100.5; it must be a number in [-100, 100]."),
    ({"logit_bias": {4: -100.5}}, "`logit_bias` is -100.5; it must be a number in [-100, 100]."),
    ({"logit_bias": {4: math.nan}}, "`logit_bias` is nan; it must be a number in [-100, 100]."),
    ({"logit_bias": dict.fromkeys(range(1025), 0.5)}, "`logit_bias` has 1025 entries; it must have at most 1024."),
    ({"min_tokens": -1}, "`min_tokens` is -1; it must be a whole number of at least 0."),
    ({"min_tokens": 129}, "`min_tokens` is 129; it must be at most `max_tokens`, which is 128."),
    ({"min_tokens": 8, "max_tokens": 7}, "`min_tokens` is 8; it must be at most `max_tokens`, which is 7."),
    ({"stop": 5}, "`stop` is 5; it must be a list."),
    ({"stop": ("a", 1)}, "`stop` is 1; it must be strings of 1 to 1024 characters."),
    ({"stop": ("x",) * 65}, "`stop` has 65 strings; it must have at most 64."),
    ({"bad_words": ("a", "")}, "`bad_words` is ''; it must be strings of 1 to 256 characters."),
    ({"bad_words": ("x",) * 1025}, "`bad_words` has 1025 strings; it must have at most 1024."),
    ({"allowed_token_ids": ()}, "`allowed_token_ids` is empty, so no token could be chosen; leave it out."),
    ({"allowed_token_ids": (-1,)}, "`allowed_token_ids` is -1; it must be token ids of at least 0."),
    ({"allowed_token_ids": "5"}, "`allowed_token_ids` is '5'; it must be a list."),
    (
        {"allowed_token_ids": (1,), "structured_outputs": StructuredOutputs(choice=("a",))},
        "`allowed_token_ids` cannot be kept beside `structured_outputs`; send one of them.",
    ),
    ({"include_stop_str_in_output": 1}, "`include_stop_str_in_output` is 1; it must be True or False."),
    ({"stop_token_ids": (3, -1)}, "`stop_token_ids` is -1; it must be token ids of at least 0."),
    ({"stop_token_ids": (3, True)}, "`stop_token_ids` is True; it must be token ids of at least 0."),
    ({"stop_token_ids": (3,) * 1025}, "`stop_token_ids` has 1025 ids; it must have at most 1024."),
    ({"ignore_eos": 1}, "`ignore_eos` is 1; it must be True or False."),
    ({"seed": 2**63}, "`seed` is 9223372036854775808; it must be a signed 64-bit integer."),
    ({"logprobs": -1}, "`logprobs` is -1; it must be a whole number in [0, 20]."),
    ({"logprobs": 1.5}, "`logprobs` is 1.5; it must be a whole number in [0, 20]."),
    ({"n": 0}, "`n` is 0; it must be a whole number in [1, 128]."),
    ({"n": True}, "`n` is True; it must be a whole number in [1, 128]."),
    ({"n": 129}, "`n` is 129; it must be a whole number in [1, 128]."),
]


@pytest.mark.covers("http/limit-logit-bias")
@pytest.mark.parametrize("params", ALLOWED, ids=",".join)
def test_values_at_the_edge_are_allowed(params: dict[str, Any]) -> None:
    made = SamplingParams(**params)
    assert {name: getattr(made, name) for name in params} == params


@pytest.mark.covers(
    "requests/max-tokens",
    "http/limit-n",
    "http/limit-stop-strings",
    "http/limit-temperature",
    "http/limit-messages-of-their-own",
)
@pytest.mark.parametrize(("params", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_values_beyond_the_edge_are_refused_by_name(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SamplingParams(**params)


@pytest.mark.covers("http/limit-finite")
@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^`{name}` is {value}; it must be a number in"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]  # the names are those of floats


@pytest.mark.covers("requests/stop")
def test_one_stop_string_is_one_stop_and_not_its_letters() -> None:
    assert SamplingParams(stop="speak").stop == ("speak",)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"top_k": 0}, {"top_k": None}),
        ({"top_k": -1}, {"top_k": None}),
        ({"seed": -1}, {"seed": None}),
        ({"top_p": 0, "temperature": 1.5}, {"temperature": 0.0}),
        ({"stop": ""}, {"stop": ()}),
        ({"stop": ["a", ""]}, {"stop": ("a",)}),
        ({"stop": None, "stop_token_ids": None, "bad_words": None}, {}),
        ({"bad_words": "word"}, {"bad_words": ("word",)}),
    ],
)
def test_what_means_none_or_all_elsewhere_has_one_form(written: dict[str, Any], meant: dict[str, Any]) -> None:
    assert SamplingParams(**written) == SamplingParams(**meant)


def test_other_negative_seeds_are_seeds() -> None:
    assert SamplingParams(seed=-2).seed == -2


@pytest.mark.covers("requests/penalties", "requests/logit-bias", "requests/min-tokens")
def test_defaults_change_nothing() -> None:
    params = SamplingParams()
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.logit_bias, params.min_tokens, params.logprobs, params.n) == ({}, 0, None, 1)


def test_a_bias_survives_json_whose_keys_are_strings() -> None:
    params = SamplingParams(logit_bias={5: -1.5, 0: 2.0}, logprobs=3, n=2)
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


def test_params_that_share_no_bias_share_no_dictionary() -> None:
    assert SamplingParams().logit_bias is not SamplingParams().logit_bias
