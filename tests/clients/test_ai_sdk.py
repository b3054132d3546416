"""Vercel's AI SDK over each of its providers: loops with tools, whole and streamed, and the next turn."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest


@pytest.mark.parametrize("provider", ["chat", "compatible", "responses", "anthropic"])
def test_a_loop_with_a_tool_ends_with_the_answer(
    provider: str, serve_call: Callable[..., AbstractContextManager[str]], run_node: Callable[..., str]
) -> None:
    with serve_call("look", {"place": "under it"}, ["There is", " a stone."]) as url:
        said = json.loads(run_node("ai_sdk.mjs", provider, url, "scripted"))
    answers = {said.pop(name) for name in ("whole", "again", "streamed")}
    assert answers == {"There is a stone."}
    assert said["seen"] == ["under it"] * 3
