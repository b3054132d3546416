"""The Completion tab and the sampling controls, in a real browser against the demo model."""

import json
from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

Visit = Callable[..., Page]
PROMPT = "ROMEO:\n"


def continue_text(page: Page, text: str = PROMPT) -> None:
    page.get_by_label("Text to continue").fill(text)
    page.get_by_role("button", name="Continue").click()


def test_text_is_continued_in_place_and_marked(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Max tokens").fill("24")
    page.get_by_label("Seed").fill("7")
    continue_text(page)
    expect(page.locator("#completion-stats")).to_contain_text("24 tokens")
    text = page.get_by_label("Text to continue").input_value()
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 7}
    expected = httpx.post(f"{demo_url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    assert text == PROMPT + expected
    assert page.locator("#text-mirror mark").text_content() == expected


def test_continuation_can_be_taken_back(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Max tokens").fill("8")
    continue_text(page)
    page.get_by_role("button", name="Take back").click()
    assert page.get_by_label("Text to continue").input_value() == PROMPT
    expect(page.get_by_role("button", name="Take back")).to_be_disabled()


def test_stop_button_ends_the_request_on_the_server(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Max tokens").fill("1000")
    continue_text(page)
    expect(page.locator("#completion-stats")).to_contain_text("TTFT")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#completion-stats")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Continue")).to_be_focused()
    page.get_by_role("tab", name="Batch").click()
    expect(page.locator("#stat-running")).to_have_text("0")


def test_control_enter_continues_and_enter_is_a_line_break(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Max tokens").fill("4")
    text = page.get_by_label("Text to continue")
    text.press_sequentially("ROMEO:")
    text.press("Enter")
    assert text.input_value() == PROMPT
    text.press("Control+Enter")
    expect(page.locator("#completion-stats")).to_contain_text("4 tokens")


def test_filled_in_controls_are_sent_and_others_are_not(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Top k").fill("20")
    page.get_by_label("Presence penalty").fill("-0.5")
    page.get_by_label("Stop, one per line").fill("JULIET\n\\n\\n")
    with page.expect_request("**/v1/completions") as sent:
        continue_text(page)
    body = json.loads(sent.value.post_data or "")
    assert {name: body[name] for name in body if name not in ("prompt", "stream", "stream_options")} == {
        "temperature": 0,
        "top_k": 20,
        "presence_penalty": -0.5,
        "stop": ["JULIET", "\n\n"],
    }


def test_controls_are_kept_over_a_reload_and_reset_by_a_button(visit: Visit, demo_url: str) -> None:
    page = visit(demo_url)
    page.get_by_label("Temperature").fill("0.7")
    page.reload()
    expect(page.get_by_label("Temperature")).to_have_value("0.7")
    page.get_by_role("button", name="Reset").click()
    page.reload()
    expect(page.get_by_label("Temperature")).to_have_value("")


def test_value_that_is_out_of_range_is_not_sent(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion")
    page.get_by_label("Presence penalty").fill("7")
    continue_text(page)
    expect(page.get_by_label("Presence penalty")).to_be_focused()
    assert page.get_by_label("Text to continue").input_value() == PROMPT


def test_refusal_of_the_server_is_shown(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#completion", expects="400")
    continue_text(page, "")
    expect(page.get_by_role("alert")).to_contain_text("empty_prompt")
