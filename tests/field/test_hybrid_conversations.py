"""Conversations with a model whose layers have states: what a later prompt finds, and that answers are the cold ones.

Other engines compute whole conversations again at each turn, answer as if the last turn were there, or lose slots.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from infer_proofs.engine.models import save_servable
from infer_proofs.models import save_chat_style

BLOCK = 16
Json = dict[str, Any]
RULES: Json = {"role": "system", "content": "You help in a library: be brief, name shelves, never lend the old atlas."}


@pytest.fixture(scope="module")
def library(
    serve_for_many: Callable[..., AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A server on a tiny Qwen 3.5 in fp32."""
    folder = tmp_path_factory.mktemp("hybrid")
    save_servable("qwen3_5", folder)
    save_chat_style("qwen3_5", folder)
    flags = ("--dtype", "float32", "--batch-invariant", "--max-batch-size", "4", "--block-size", f"{BLOCK}")
    with (
        serve_for_many("--model", str(folder), "--kv-cache-memory", "16MiB", *flags) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


def chat(client: httpx.Client, messages: list[Json], **more: Any) -> tuple[str, int, int]:
    """Return the answer, the tokens of the prompt, and how many of them were found."""
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    usage = answer["usage"]
    return (
        answer["choices"][0]["message"]["content"],
        usage["prompt_tokens"],
        usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
    )


def cold(client: httpx.Client, messages: list[Json], name: str) -> str:
    """Return the answer of a tenant that nobody has asked anything for."""
    answer, _, found = chat(client, messages, cache_salt=f"cold {name}")
    assert found == 0
    return answer


def num_tokens(client: httpx.Client, messages: list[Json]) -> int:
    body = {"messages": messages, "add_generation_prompt": False}
    return int(client.post("/tokenize", json=body).raise_for_status().json()["count"])


def state_slots(client: httpx.Client) -> dict[str, float]:
    text = client.get("/metrics").raise_for_status().text
    assert "infer:num_state_evictions_total" in text
    return {state: float(number) for state, number in re.findall(r'infer:state_slots\{.*state="(\w+)"\} (\S+)', text)}


def test_a_short_conversation_goes_on_from_where_it_was(library: httpx.Client) -> None:
    # ggml-org/llama.cpp#20225, #20428: no state was kept of prompts below a length, so all was computed at each turn
    history, total = [RULES], 0
    for turn in range(3):
        history.append(user(f"Where is book {turn}?"))
        answer, length, found = chat(library, history, cache_salt="turns")
        assert answer == cold(library, history, f"turn {turn}")
        if turn:  # the prompt of the turn before, but for its last block and the beginning of an answer
            assert found >= total - 2 * BLOCK
        history, total = [*history, assistant(answer)], length


def test_the_same_prompt_is_found_and_regenerated_as_it_was(library: httpx.Client) -> None:
    # ml-explore/mlx-lm#1162: never found; ikawrakow/ik_llama.cpp#1295: went on after the answer that was there
    history = [RULES, user("Which shelf has the maps of rivers?")]
    first, length, _ = chat(library, history, cache_salt="again")
    for _ in range(2):
        answer, _, found = chat(library, history, cache_salt="again")
        assert answer == first
        assert found >= length - 1 - BLOCK


def test_what_is_inserted_midway_is_computed_from_there(library: httpx.Client) -> None:
    # ggml-org/llama.cpp#18497
    first, last = user("The red book, the blue book, and the green book of hills."), user("And the last one?")
    chat(library, [RULES, first, last], cache_salt="insert")
    inserted = [RULES, first, assistant("All on shelf nine, to the left."), user("Thanks!"), last]
    answer, _, found = chat(library, inserted, cache_salt="insert")
    assert answer == cold(library, inserted, "insert")
    assert num_tokens(library, [RULES, first]) - 2 * BLOCK <= found <= num_tokens(library, [RULES, first]) + 2


def test_prompts_that_differ_at_their_end_find_what_they_share(library: httpx.Client) -> None:
    # ggml-org/llama.cpp#24714: a date at the end of each prompt; vllm-project/vllm#51250: a prompt of the system
    shared = "When was the composer of the fifth born? Consider letters, diaries and what neighbours said. Asked at"
    found = []
    for hour in ("09:01", "10:30", "11:47", "12:15"):
        answer, _, of_it = chat(library, [RULES, user(f"{shared} {hour}")], cache_salt="hours")
        assert answer == cold(library, [RULES, user(f"{shared} {hour}")], hour)
        found.append(of_it)
    assert found[1] >= num_tokens(library, [RULES]) - BLOCK  # where a message begins
    assert min(found[2:]) >= num_tokens(library, [RULES, user(shared)]) - 2 * BLOCK  # where two turned off before


def test_answers_that_nobody_waits_for_leave_no_slot_taken(library: httpx.Client) -> None:
    # sgl-project/sglang#12693, #16067
    for number in range(12):
        body = {"messages": [RULES, user(f"Tell all, number {number}")], "max_tokens": 400, "stream": True}
        with library.stream("POST", "/v1/chat/completions", json=body | {"ignore_eos": True}) as response:
            assert response.status_code == 200
            if number % 2:
                next(response.iter_lines())
    history = [RULES, user("Is anybody there?")]
    assert chat(library, history, cache_salt="after")[0] == cold(library, history, "after")
    slots = state_slots(library)
    assert slots["held"] == 0
    assert slots["kept"] > 0
    assert slots["free"] >= 0
