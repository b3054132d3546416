"""The parts of an answer on the page: thinking, commentary, calls and the answer, in the order in which they came."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

Visit = Callable[..., Page]
NOON = {"id": "call_0", "type": "function", "function": {"name": "get_time", "arguments": '{"zone":"UTC"}'}}
UNTIL_THE_SECOND_THINKING: list[dict[str, Any]] = [
    *({"reasoning_content": text} for text in ("Which ", "zone?")),
    *({"content": text} for text in ("Let me ", "look.")),
    {"tool_calls": [NOON | {"index": 0, "function": {"name": "get_time", "arguments": ""}}]},
    *({"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in ('{"zone"', ':"UTC"}')),
    *({"reasoning_content": text} for text in ("\n\nNow ", "I know.")),
]
ALL = [*UNTIL_THE_SECOND_THINKING, {"content": "\n\nIt is "}, {"content": "noon."}]
MESSAGE = {
    "role": "assistant",
    "content": "Let me look.\n\nIt is noon.",
    "reasoning_content": "Which zone?\n\nNow I know.",
    "tool_calls": [NOON],
}
FIRST_PARTS = r"""
  - group: /Thought for [\d.]+ s/
  - text: Commentary Let me look.
  - region "Call of get_time":
    - heading "Call get_time"
    - text: '/"zone": "UTC"/'
"""
THOUGHT = r"""
  - group: /Thought for [\d.]+ s/
"""
WITHOUT_END = """(text) => {
  window.fetch = async (path, { signal }) => new Response(new ReadableStream({ start(body) {
    body.enqueue(new TextEncoder().encode(text));
    signal.addEventListener("abort", () => body.error(signal.reason));
  } }));
}"""


def events(deltas: list[dict[str, Any]]) -> str:
    """Return the events of a chat stream with these deltas, which goes on."""
    return "".join(f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n" for delta in deltas)


def ask(page: Page) -> Locator:
    """Send a message, and return the turn of its answer."""
    page.get_by_label("Message").fill("time?")
    page.get_by_label("Message").press("Enter")
    return page.locator('.turn[data-role="assistant"]').last


@pytest.mark.covers("structured-tools-agents/playground-cards")
def test_parts_are_shown_in_their_order_and_sent_back_as_one_message(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    whole = events(ALL) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=whole, content_type="text/event-stream"))
    answer = ask(page)
    expected = f"- article:{FIRST_PARTS}{THOUGHT}\n  - text: Answer It is noon.\n"
    expect(answer).to_match_aria_snapshot(expected)
    shown = answer.locator(".parts").aria_snapshot()
    page.reload()
    expect(answer).to_match_aria_snapshot(expected)
    assert answer.locator(".parts").aria_snapshot() == shown, "also how long it thought"
    answer.get_by_text("Thought for").last.click()
    expect(answer.get_by_text("Now I know.", exact=True)).to_be_visible()
    expect(answer.get_by_text("Which zone?", exact=True)).to_be_hidden()
    page.get_by_label("Result").fill("12:00")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Send results").click()
    assert json.loads(sent.value.post_data or "")["messages"] == [
        {"role": "user", "content": "time?"},
        MESSAGE,
        {"role": "tool", "tool_call_id": "call_0", "content": "12:00"},
    ]


def test_escape_in_the_second_thinking_keeps_what_came(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.evaluate(WITHOUT_END, events(UNTIL_THE_SECOND_THINKING))
    answer = ask(page)
    expect(answer).to_match_aria_snapshot(f"- article:{FIRST_PARTS}\n  - group: Thinking…\n")
    page.keyboard.press("Escape")
    for _ in range(2):
        expect(answer).to_match_aria_snapshot(f"- article:{FIRST_PARTS}{THOUGHT}")
        expect(answer.get_by_label("Result")).to_be_visible()
        page.reload()


def test_conversation_without_parts_is_shown_in_the_usual_order(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.evaluate("kept => sessionStorage.setItem('infer.conversation', kept)", json.dumps([MESSAGE]))
    page.reload()
    answer = page.locator(".turn")
    expect(answer).to_match_aria_snapshot(
        '- article:\n  - group: Thoughts\n  - text: /Commentary/\n  - region "Call of get_time"'
    )
    expect(answer.get_by_label("Result")).to_be_visible()
