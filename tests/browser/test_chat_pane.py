"""The Chat tab, in a real browser and mostly against a real server."""

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Route, expect

Visit = Callable[..., Page]
MARKUP = "<img src=x onerror=\"document.title='run'\"><b>bold</b>"


def events(*deltas: dict[str, Any], end: str = "data: [DONE]\n\n") -> str:
    """Return a chat stream with these deltas."""
    chunks = ({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas)
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end


def answer_with(page: Page, stream: str) -> None:
    """Let this stream be the answer to every message."""
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))


def send(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_message_is_answered_with_its_numbers(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.get_by_label("Max tokens").fill("12")
    send(page, "hello there")
    answer = page.locator('.turn[data-role="assistant"]')
    expect(answer.locator(".stats")).to_contain_text("prompt")
    for fact in ("TTFT", "tokens/s", "12 tokens", "length"):
        expect(answer.locator(".stats")).to_contain_text(fact)
    assert answer.locator(".said").inner_text().strip()
    expect(page.get_by_label("Message")).to_be_focused()


def test_prefix_found_in_the_cache_is_told(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.get_by_label("Max tokens").fill("4")
    numbers = page.locator('.turn[data-role="assistant"] .stats')
    for count in (1, 2):
        send(page, "a message of several blocks, which is sent twice")
        expect(numbers).to_have_count(count)
        expect(numbers.last).to_contain_text("prompt")
    expect(numbers.last).to_contain_text("cached")


def test_conversation_is_sent_whole_and_survives_a_reload(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    answer_with(page, events({"role": "assistant", "content": ""}, {"content": "Good "}, {"content": "day"}))
    page.get_by_text("System prompt", exact=True).first.click()
    page.get_by_label("System prompt").fill("Be kind.")
    send(page, "one")
    expect(page.locator(".said").last).to_have_text("Good day")
    page.reload()
    with page.expect_request("**/v1/chat/completions") as sent:
        send(page, "two")
    messages = json.loads(sent.value.post_data or "")["messages"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Be kind."),
        ("user", "one"),
        ("assistant", "Good day"),
        ("user", "two"),
    ]


def test_clear_forgets_the_conversation(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    answer_with(page, events({"content": "yes"}))
    send(page, "one")
    expect(page.locator(".said").last).to_have_text("yes")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".turn")).to_have_count(0)
    page.reload()
    expect(page.locator(".turn")).to_have_count(0)


def test_markup_is_shown_as_text_whoever_wrote_it(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    answer_with(page, events({"content": MARKUP[:7]}, {"content": MARKUP[7:]}))
    send(page, MARKUP)
    expect(page.locator(".said")).to_have_text([MARKUP, MARKUP])
    assert page.locator(".transcript :is(img, b)").count() == 0
    assert page.title() != "run"


def test_shift_enter_is_a_line_break(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    message = page.get_by_label("Message")
    message.press_sequentially("a")
    message.press("Shift+Enter")
    message.press_sequentially("b")
    assert message.input_value() == "a\nb"
    expect(page.locator(".turn")).to_have_count(0)


def test_escape_stops_the_answer_and_keeps_its_text(visit: Visit, demo_url: str) -> None:
    page = visit(demo_url)
    page.route("**/v1/chat/completions", without_end)
    send(page, "speak")
    answer = page.locator('.turn[data-role="assistant"]')
    expect(answer.locator(".said")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(answer.locator(".stats")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    assert answer.locator(".said").inner_text().strip()


def without_end(route: Route) -> None:
    """Pass a request on that the model is not allowed to end."""
    route.continue_(post_data={**json.loads(route.request.post_data or ""), "ignore_eos": True})


def test_failure_is_shown_in_the_servers_words_and_can_be_tried_again(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    failure = {"error": {"message": "The engine died.", "type": "server_error", "param": None, "code": "engine_dead"}}
    answer_with(page, events({"content": "half"}, end=f"data: {json.dumps(failure)}\n\ndata: [DONE]\n\n"))
    send(page, "one")
    expect(page.get_by_role("alert")).to_contain_text("The engine died. (engine_dead)")
    expect(page.locator(".turn")).to_have_count(1)
    page.unroute("**/v1/chat/completions")
    answer_with(page, events({"content": "whole"}))
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".said").last).to_have_text("whole")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_refusal_names_the_value_that_was_sent(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url, expects="400")
    page.get_by_label("Max tokens").fill("1000000")
    send(page, "one")
    expect(page.get_by_role("alert")).to_contain_text("maximum context length")


def test_model_without_a_template_opens_on_completion_and_says_why(visit: Visit, plain_url: str) -> None:
    page = visit(plain_url, expects="400")
    expect(page.get_by_role("tab", name="Completion")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Chat").click()
    expect(page.get_by_text("has no chat template")).to_be_visible()
    expect(page.get_by_label("Message")).to_be_hidden()
    page.get_by_role("button", name="Go to Completion").click()
    expect(page.get_by_label("Text to continue")).to_be_focused()
