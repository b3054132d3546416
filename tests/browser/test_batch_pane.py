"""The Batch tab, in a real browser against a real engine that is at work."""

from collections.abc import Callable

import msgspec
from playwright.sync_api import Page, expect

from infer_engine.protocol import BatchSnapshot, EngineStats, SequenceSnapshot
from infer_engine.protocol.stats import DraftCounts

Visit = Callable[..., Page]
NUM_BLOCKS = 4096


def count(page: Page, kind: str) -> int:
    return int(page.locator(f"#count-{kind}").inner_text())


def test_idle_engine_has_no_rows_and_free_blocks(visit: Visit, tiny_url: str) -> None:
    page = visit(f"{tiny_url}/#batch")
    expect(page.get_by_text("Nothing runs, nothing waits.")).to_be_visible()
    expect(page.locator("#stat-running")).to_have_text("0")
    assert count(page, "held") == count(page, "shared") == 0
    assert count(page, "free") > 0


def test_samples_run_together_and_share_blocks_until_they_are_stopped(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch")
    page.get_by_label("Samples sharing a prefix").fill("10")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#sequences tr")).to_have_count(10)
    expect(page.locator('#sequences tr[data-state="decode"]')).to_have_count(10)
    expect(page.locator("#count-shared")).not_to_have_text("0")
    expect(page.locator("#stat-rate")).not_to_have_text("0.0")
    page.locator("#sequences tr").nth(3).hover()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    expect(page.locator("#sequences tr")).to_have_count(0)
    expect(page.locator("#stat-hits")).not_to_have_text("0%")


def test_block_under_the_pointer_is_told_and_its_sequences_are_lit(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch")
    show(page, snapshot(num_sequences=3, shared=1))
    page.locator("#blocks").hover(position={"x": 3, "y": 3})
    expect(page.locator("#block-note")).to_contain_text("Block 0, 16 tokens, shared by 3: s0, s1, s2")
    expect(page.locator("#sequences tr.lit")).to_have_count(3)
    expect(page.locator("#sequences tr td:nth-child(6)")).to_have_text(["", "1 of 2", "2 of 4"])


def test_hundreds_of_sequences_and_thousands_of_blocks_are_shown(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch")
    show(page, snapshot(num_sequences=500, shared=2))
    expect(page.locator("#sequences tr")).to_have_count(500)
    assert (count(page, "held"), count(page, "shared"), count(page, "free")) == (500, 2, NUM_BLOCKS - 502)
    show(page, snapshot(num_sequences=0, shared=0))
    expect(page.locator("#sequences tr")).to_have_count(0)


def test_rows_follow_the_order_and_the_state_of_the_engine(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch")
    show(page, snapshot(num_sequences=3, shared=0))
    expect(page.locator("#sequences tr td:first-child")).to_have_text(["s0", "s1", "s2"])
    expect(page.locator("#sequences .state b")).to_have_text(["prefill", "decode", "decode"])
    assert page.locator("#sequences .bar i").first.evaluate("bar => bar.style.width") == "25%"
    taken = snapshot(num_sequences=3, shared=0)
    show(page, msgspec.structs.replace(taken, sequences=taken.sequences[:0:-1]))
    expect(page.locator("#sequences tr td:first-child")).to_have_text(["s2", "s1"])


def test_view_polls_only_while_it_is_looked_at(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch")
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "batch" in request.url else None)
    with page.expect_response("**/playground/batch"):
        pass
    page.get_by_role("tab", name="Chat").click()
    page.wait_for_load_state("networkidle")
    polls.clear()
    page.get_by_role("tab", name="Completion").click()
    page.wait_for_load_state("networkidle")
    assert polls == []
    with page.expect_response("**/playground/batch"):
        page.get_by_role("tab", name="Batch").click()


def test_failing_poll_is_told_and_tried_again(visit: Visit, demo_url: str) -> None:
    page = visit(f"{demo_url}/#batch", expects="503")
    error = '{"error": {"message": "The engine is dead.", "code": "engine_unavailable"}}'
    page.route("**/playground/batch", lambda route: route.fulfill(status=503, body=error))
    expect(page.get_by_role("alert")).to_contain_text("The engine is dead.")
    page.unroute("**/playground/batch")
    expect(page.get_by_role("alert")).to_have_count(0)


def show(page: Page, taken: BatchSnapshot) -> None:
    """Let every poll from here on get `taken`."""
    page.unroute("**/playground/batch")
    body = msgspec.json.encode(taken)
    with page.expect_response(lambda reply: "batch" in reply.url and reply.body() == body):
        page.route("**/playground/batch", lambda route: route.fulfill(body=body, content_type="application/json"))


def snapshot(*, num_sequences: int, shared: int) -> BatchSnapshot:
    """Return sequences with one block each, after `shared` ones that all of them hold; the first is in its prefill."""
    sequences = [
        SequenceSnapshot(
            request_id=f"s{i}",
            state="decode" if i else "prefill",
            num_prompt_tokens=40,
            num_computed_tokens=40 if i else 10,
            num_cached_tokens=0,
            num_completion_tokens=i,
            drafts=DraftCounts(num_drafted=2 * i, num_accepted=i),
            block_ids=[*range(shared), shared + i],
        )
        for i in range(num_sequences)
    ]
    holders = [num_sequences] * shared + [1] * num_sequences
    return BatchSnapshot(
        stats=EngineStats(num_running=num_sequences),
        sequences=sequences,
        block_size=16,
        num_blocks=NUM_BLOCKS,
        holders=holders + [0] * (NUM_BLOCKS - len(holders)),
    )
