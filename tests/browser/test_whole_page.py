"""What holds for every tab: the key, the keyboard, the colours, the width of a phone."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

Visit = Callable[..., Page]
TABS = ("chat", "completion", "batch")


@pytest.mark.covers("http/api-keys-playground")
def test_server_with_a_key_asks_for_it_and_goes_on(visit: Visit, guarded_url: str) -> None:
    page = visit(guarded_url, expects="401")
    key = page.get_by_label("This server asks for an API key")
    expect(key).to_be_focused()
    expect(page.get_by_role("alert")).to_have_count(0)
    key.fill("wrong")
    key.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("invalid_api_key")
    key.fill("open sesame")
    key.press("Enter")
    expect(key).to_be_hidden()
    page.get_by_role("tab", name="Batch").click()
    expect(page.locator("#stat-running")).to_have_text("0")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.reload()
    expect(page.locator("#stat-running")).to_have_text("0")
    assert "sesame" not in page.evaluate("JSON.stringify(localStorage) + document.cookie")


def test_page_names_the_model_and_its_context(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    expect(page.locator("#model-name")).to_have_text("tiny")
    expect(page.locator("#model-context")).to_contain_text("tokens")


def test_tabs_are_moved_through_with_the_arrow_keys(visit: Visit, tiny_url: str) -> None:
    page = visit(tiny_url)
    page.get_by_role("tab", name="Chat").focus()
    for name in ("Completion", "Batch", "Chat"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        assert page.url.endswith(name.lower())


@pytest.mark.parametrize("tab", TABS)
def test_every_control_has_a_name(visit: Visit, tiny_url: str, tab: str) -> None:
    page = visit(f"{tiny_url}/#{tab}")
    for control in page.locator("button:visible, input:visible, textarea:visible").all():
        snapshot = control.aria_snapshot()
        assert '"' in snapshot, snapshot


@pytest.mark.parametrize("tab", TABS)
def test_phone_never_scrolls_sideways(visit: Visit, tiny_url: str, tab: str) -> None:
    page = visit(f"{tiny_url}/#{tab}", viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    expect(page.get_by_role("tab", selected=True)).to_have_attribute("id", f"tab-{tab}")
    if tab == "chat":
        page.get_by_label("Message").fill("w" * 200)
        page.get_by_role("button", name="Send").click()
        expect(page.locator('.turn[data-role="assistant"] .stats')).to_contain_text("TTFT")
    if tab == "batch":
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#sequences tr").first).to_be_visible()
    else:
        page.get_by_text("Sampling", exact=True).click()
    assert page.evaluate("document.documentElement.scrollWidth") == 375


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_can_be_read(visit: Visit, tiny_url: str, scheme: str) -> None:
    page = visit(tiny_url, color_scheme=scheme)
    paper, ink, soft = (page.evaluate(LUMINANCE, name) for name in ("--paper", "--ink", "--soft"))
    assert (paper > 0.5) == (scheme == "light")
    assert contrast(paper, ink) > 12
    assert contrast(paper, soft) > 4.5


def contrast(one: float, other: float) -> float:
    """Return the contrast ratio of two luminances, as accessibility guidelines define it."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


LUMINANCE = """name => {
  const probe = document.body.appendChild(document.createElement("p"));
  probe.style.color = `var(${name})`;
  const channels = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  probe.remove();
  const linear = channels.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}"""
