"""The Chat tab, in a real browser and mostly against a real server: messages, thinking, tool calls."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

Visit = Callable[..., Page]
CITY = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}}}
TIME = {"name": "get_time"}
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


@pytest.mark.covers("http/playground")
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


def called(index: int, name: str, arguments: str) -> list[dict[str, Any]]:
    """Return the deltas of a call, its arguments in two pieces."""
    half = len(arguments) // 2
    first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": index, "function": {"arguments": text}} for text in (arguments[:half], arguments[half:])]
    return [{"tool_calls": [piece]} for piece in (first, *pieces)]


def give_tools(page: Page, *functions: dict[str, Any]) -> None:
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Functions").fill(json.dumps(functions))


def body_of(request: Request) -> Any:
    return json.loads(request.post_data or "")


def sent_by(page: Page, act: Callable[[], None]) -> Any:
    """Return the body of the request that `act` sends."""
    with page.expect_request("**/v1/chat/completions") as sent:
        act()
    return body_of(sent.value)


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=f"Call of {name}")


@pytest.mark.covers("structured-tools-agents/playground-cards")
def test_thinking_is_folded_and_apart_from_the_answer(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    answer_with(page, events({"reasoning_content": f"Hm, {MARKUP}"}, {"reasoning_content": " so"}, {"content": "Yes."}))
    send(page, "well?")
    expect(page.locator(".said").last).to_have_text("Yes.")
    thoughts = page.get_by_text(f"Hm, {MARKUP} so")
    expect(thoughts).to_be_hidden()
    page.get_by_text("Thought for").click()
    expect(thoughts).to_be_visible()
    assert page.locator(".transcript :is(img, b)").count() == 0


def test_answer_without_thinking_shows_none(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    answer_with(page, events({"content": "Yes."}))
    send(page, "well?")
    expect(page.locator(".said").last).to_have_text("Yes.")
    expect(page.locator(".thinking").last).to_be_hidden()


@pytest.mark.covers("structured-tools-agents/playground-cards")
def test_calls_are_cards_whose_results_are_sent_in_order(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, CITY, TIME)
    answer_with(
        page, events({"content": "I look."}, *called(0, "get_weather", '{"city":"Rome"}'), *called(1, "get_time", "{}"))
    )
    send(page, "weather?")
    expect(card(page, "get_weather")).to_contain_text('{\n  "city": "Rome"\n}')
    expect(card(page, "get_weather").get_by_label("Result")).to_be_focused()
    card(page, "get_time").get_by_label("Result").fill("noon")
    card(page, "get_weather").get_by_label("Result").fill(MARKUP)
    page.unroute("**/v1/chat/completions")
    answer_with(page, events({"content": "It is sunny."}))
    body = sent_by(page, lambda: page.get_by_role("button", name="Send results").click())
    assert body["messages"] == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
                },
                {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": MARKUP},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    expect(page.locator(".said").last).to_have_text("It is sunny.")
    expect(card(page, "get_weather")).to_contain_text(MARKUP)
    expect(page.get_by_label("Result")).to_have_count(0)
    expect(page.get_by_role("button", name="Send results")).to_have_count(0)
    assert page.locator(".transcript :is(img, b)").count() == 0


def test_control_enter_sends_the_results(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, TIME)
    answer_with(page, events(*called(0, "get_time", "{}")))
    send(page, "time?")
    page.get_by_label("Result").fill("noon")
    body = sent_by(page, lambda: page.get_by_label("Result").press("Control+Enter"))
    assert body["messages"][-1] == {"role": "tool", "tool_call_id": "call_0", "content": "noon"}


def test_a_message_sends_the_results_before_it(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, TIME)
    answer_with(page, events(*called(0, "get_time", "{}")))
    send(page, "time?")
    page.get_by_label("Result").fill("noon")
    body = sent_by(page, lambda: send(page, "never mind"))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]


def test_calls_and_results_survive_a_reload(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, TIME)
    answer_with(page, events(*called(0, "get_time", "{}")))
    send(page, "time?")
    page.get_by_label("Result").wait_for()
    page.reload()
    page.get_by_label("Result").fill("noon")
    page.get_by_role("button", name="Send results").click()
    expect(card(page, "get_time")).to_have_count(2)
    page.reload()
    expect(card(page, "get_time")).to_have_count(2)
    expect(card(page, "get_time").first.locator(".result")).to_have_text("noon")
    expect(page.get_by_label("Result")).to_have_count(1)


def test_a_call_that_was_cut_off_asks_for_no_result_and_is_not_sent_back(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, TIME)
    answer_with(page, events({"content": "Well"}, *called(0, "get_time", '{"zone": "')))
    send(page, "time?")
    expect(card(page, "get_time")).to_contain_text('{"zone": "')
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.get_by_label("Result")).to_have_count(0)
    body = sent_by(page, lambda: send(page, "go on"))
    assert body["messages"][1] == {"role": "assistant", "content": "Well"}


def test_demo_model_calls_the_tool_that_it_must(visit: Visit, demo_url: str) -> None:
    page = visit(demo_url)
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Insert an example").click()
    choice = page.get_by_label("Calls")
    assert choice.locator("option").all_inner_texts() == ["auto", "required", "none", "only get_weather"]
    choice.select_option("only get_weather")
    body = sent_by(page, lambda: send(page, "How is the weather in Rome?"))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    expect(card(page, "get_weather")).to_contain_text('"city"')
    page.get_by_label("Result").fill("sunny")
    body = sent_by(page, lambda: page.get_by_role("button", name="Send results").click())
    assert body["tool_choice"] == "auto", "a call is forced once, or there would be no answer"
    expect(page.locator(".said").last).not_to_be_empty()


@pytest.mark.parametrize(
    "functions", [json.dumps(TIME), json.dumps([TIME]), json.dumps([{"type": "function", "function": TIME}])]
)
def test_functions_are_sent_as_tools_however_they_are_written(visit: Visit, tiny_url: str, functions: str) -> None:
    page = visit(tiny_url)
    give_tools(page)
    page.get_by_label("Functions").fill(functions)
    answer_with(page, events({"content": "yes"}))
    body = sent_by(page, lambda: send(page, "hello"))
    assert body["tools"] == [{"type": "function", "function": TIME}]


@pytest.mark.parametrize("functions", ["{", "[1]", '[{"parameters": {}}]', "null"])
def test_what_is_no_list_of_functions_is_not_sent(visit: Visit, tiny_url: str, functions: str) -> None:
    page = visit(tiny_url)
    give_tools(page)
    page.get_by_label("Functions").fill(functions)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "completions" in request.url else None)
    send(page, "hello")
    assert page.get_by_label("Functions").evaluate("field => field.matches(':invalid')")
    expect(page.locator(".turn")).to_have_count(1)
    assert asked == []


def test_tools_are_kept_and_removed(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    give_tools(page, TIME)
    page.get_by_label("Calls").select_option("only get_time")
    page.reload()
    expect(page.get_by_label("Calls")).to_have_value("only:get_time")
    page.get_by_role("button", name="Remove").click()
    answer_with(page, events({"content": "yes"}))
    body = sent_by(page, lambda: send(page, "hello"))
    assert "tools" not in body
    assert "tool_choice" not in body


def test_thinking_is_offered_to_models_that_think(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.get_by_text("Tools", exact=True).click()
    expect(page.get_by_label("Thinking")).to_be_hidden()
    page.route("**/v1/models", thinks)
    page.reload()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Thinking").select_option("off")
    answer_with(page, events({"content": "yes"}))
    assert sent_by(page, lambda: send(page, "hello"))["chat_template_kwargs"] == {"enable_thinking": False}


def thinks(route: Route) -> None:
    """Answer that the model thinks."""
    reply = route.fetch()
    [model] = reply.json()["data"]
    model["capabilities"]["reasoning"] = True
    route.fulfill(response=reply, json={"object": "list", "data": [model]})
