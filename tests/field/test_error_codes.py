"""Codes of refused values, by which clients and their users find what is wrong; the fields and codes of public reports.

Of a list that is too long (openai/openai-dotnet#317, 0x4m4/hexstrike-ai#29), a number beyond its range
(thisisartium/continuous-alignment-testing#25, OpenBMB/ChatDev#446, vectorize-io/hindsight#58), a name without
letters (kittors/CliRelay#277) and two limits that contradict each other (vllm-project/vllm#4365).
"""

from typing import Any

import httpx
import openai
import pytest

from infer_engine import SamplingParams
from infer_engine.protocol.values import WrongValueError

HI = [{"role": "user", "content": "hi"}]
CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


STRICT = {"strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "string", "typ": 1}}}}
ANCHOR = {"type": "string", "pattern": "a^b"}  # found by the library that compiles it, in another process


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        (CHAT, {"messages": HI, "n": 130}, "integer_above_max_value", "n"),
        (CHAT, {"messages": HI, "max_tokens": -15335}, "integer_below_min_value", "max_tokens"),
        (RESPONSES, {"input": "hi", "max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        (CHAT, {"messages": HI, "temperature": 200}, "decimal_above_max_value", "temperature"),
        (CHAT, {"messages": HI, "tools": [tool(f"t{i}") for i in range(300)]}, "array_above_max_length", "tools"),
        (CHAT, {"messages": HI, "tools": [tool("")]}, "empty_string", "tools[0].function.name"),
        (COMPLETIONS, {"prompt": "x", "min_tokens": 9, "max_tokens": 4}, "conflicting_fields", "min_tokens"),
        (COMPLETIONS, {"prompt": "x", "guided_regex": "(a"}, "invalid_grammar", "guided_regex"),
        (COMPLETIONS, {"prompt": "x", "guided_json": ANCHOR}, "invalid_json_schema", "guided_json"),
        (CHAT, {"messages": HI, "tools": [tool("t", **STRICT)]}, "invalid_function_parameters", "tools"),
    ],
)
def test_a_code_says_what_is_wrong_with_the_field(
    demo: httpx.Client, path: str, body: dict[str, Any], code: str, param: str
) -> None:
    reply = demo.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (422 if path == COMPLETIONS else 400, code, param)


def test_the_sdk_raises_the_code(demo: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{demo.base_url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="", messages=[{"role": "user", "content": "hi"}], top_p=5)
    assert (refused.value.code, refused.value.param) == ("decimal_above_max_value", "top_p")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"temperature": float("nan")}, "invalid_value"),
        ({"temperature": float("inf")}, "decimal_above_max_value"),
        ({"top_k": 1.5}, "invalid_value"),
        ({"top_k": True}, "invalid_value"),
    ],
)
def test_what_is_on_no_side_of_a_range_is_not_told_to_be(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(WrongValueError) as refused:
        SamplingParams(**fields)
    assert refused.value.code == code
