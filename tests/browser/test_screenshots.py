"""The pictures of `docs/playground.md`: `INFER_SCREENSHOTS=docs/images pytest tests/browser/test_screenshots.py`."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

Visit = Callable[..., Page]
MAX_BYTES = 200_000
DESK: dict[str, Any] = {"viewport": {"width": 1120, "height": 720}}
TALL_DESK: dict[str, Any] = {"viewport": {"width": 1120, "height": 860}}
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 812}, "device_scale_factor": 2}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return Path(os.environ.get("INFER_SCREENSHOTS", tmp_path))


def picture(page: Page, path: Path) -> None:
    page.screenshot(path=path, animations="disabled", caret="hide")
    assert path.stat().st_size < MAX_BYTES


def converse(page: Page) -> None:
    """Let Juliet ask twice; the seed makes it the same answers each time."""
    kept = '{"temperature": "0.6", "max_tokens": "90", "seed": "5"}'
    page.evaluate("kept => localStorage.setItem('infer.sampling', kept)", kept)
    page.reload()
    for count, message in enumerate(("Art thou not Romeo, and a Montague?", "How camest thou hither, tell me?"), 1):
        page.get_by_label("Message").fill(message)
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".turn")).to_have_count(2 * count)
        expect(page.locator(".turn .stats").last).to_contain_text("prompt")


def test_picture_of_a_conversation_in_light(visit: Visit, demo_url: str, images: Path) -> None:
    page = visit(demo_url, color_scheme="light", **DESK)
    converse(page)
    picture(page, images / "playground-chat.png")


def test_picture_of_a_tool_call(visit: Visit, demo_url: str, images: Path) -> None:
    page = visit(demo_url, color_scheme="light", **TALL_DESK)
    page.get_by_text("Sampling", exact=True).click()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Insert an example").click()
    page.get_by_label("Functions").evaluate("field => { field.style.height = `${field.scrollHeight + 2}px` }")
    page.get_by_label("Calls").select_option("only get_weather")
    page.get_by_label("Message").fill("Shall I take a cloak to Rome?")
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_label("Result").fill("Sunny, 24 degrees")
    page.get_by_role("button", name="Send results").hover()
    picture(page, images / "playground-tools.png")


def test_picture_of_a_completion_in_dark(visit: Visit, demo_url: str, images: Path) -> None:
    page = visit(f"{demo_url}/#completion", color_scheme="dark", **DESK)
    page.get_by_label("Max tokens").fill("110")
    page.get_by_label("Temperature").fill("0.6")
    page.get_by_label("Seed").fill("4")
    page.get_by_label("Text to continue").fill("KING RICHARD III:\n")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#completion-stats")).to_contain_text("prompt")
    picture(page, images / "playground-completion-dark.png")


def test_picture_of_a_conversation_on_a_phone(visit: Visit, demo_url: str, images: Path) -> None:
    page = visit(demo_url, color_scheme="light", **PHONE)
    converse(page)
    picture(page, images / "playground-phone.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_of_a_busy_batch(visit: Visit, narrow_url: str, images: Path, scheme: str) -> None:
    page = visit(f"{narrow_url}/#batch", color_scheme=scheme, viewport={"width": 1120, "height": 1180})
    start_samples(page, 4)
    expect(page.get_by_text("All samples have ended.")).to_be_visible(timeout=60_000)
    start_samples(page, 16)
    expect(page.locator('#sequences tr[data-state="decode"]')).to_have_count(10)
    expect(page.locator("#sequences tr td:nth-child(5)").nth(9)).to_have_text(re.compile("[5-9][0-9]|[1-9][0-9]{2}"))
    picture(page, images / f"playground-batch-{scheme}.png")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#sequences tr")).to_have_count(0)


def start_samples(page: Page, count: int) -> None:
    page.get_by_label("Samples sharing a prefix").fill(str(count))
    page.get_by_role("button", name="Start").click()
