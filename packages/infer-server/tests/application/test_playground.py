"""The playground's page and the snapshot behind its live view, as a browser gets them."""

import asyncio
import base64
import hashlib
import re
from html.parser import HTMLParser

import httpx
import msgspec
import pytest

from infer_engine.protocol import BatchSnapshot, EngineStatus, EngineUnavailableError, GenerateRequest, SamplingParams
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server import ServerSettings
from infer_server.playground.snapshots import SharedSnapshots


class PageParts(HTMLParser):
    """What a browser would load or run: the attributes of all elements, and the text of styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str]] = []
        self.inline: dict[str, str] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open in ("style", "script"):
            self.inline[self._open] = self.inline.get(self._open, "") + data

    def handle_endtag(self, _: str) -> None:
        self._open = ""


class CountingEngine(FakeEngine):
    """Counts the looks into it, and holds each one up until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.num_looks = 0
        self.gate = asyncio.Event()

    async def inspect(self) -> BatchSnapshot:
        self.num_looks += 1
        await self.gate.wait()
        return await super().inspect()


async def fetch_page() -> httpx.Response:
    async with client_of(FakeEngine()) as client:
        reply = await client.get("/")
    assert reply.status_code == 200
    return reply


@pytest.mark.covers("http/playground")
async def test_page_is_html_that_browsers_ask_for_again() -> None:
    reply = await fetch_page()
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.covers("http/playground")
async def test_page_loads_nothing_from_elsewhere() -> None:
    reply = await fetch_page()
    parts = PageParts(reply.text)
    loaded = [value for name, value in parts.attributes if name in ("src", "href", "action", "srcset", "data")]
    assert loaded
    assert all(value.startswith("data:") for value in loaded)
    assert "://" not in reply.text
    assert not re.search(r"url\(|@import|\bimport\b", "".join(parts.inline.values()))


async def test_page_asks_this_server_alone() -> None:
    script = PageParts((await fetch_page()).text).inline["script"]
    assert script.count("fetch(") == 1
    assert not re.search(r"XMLHttpRequest|WebSocket|EventSource|sendBeacon", script)
    paths = set(re.findall(r'"(?:\./)?((?:v1|playground)/[\w/]+)"', script))
    assert paths == {"v1/models", "v1/completions", "v1/chat/completions", "playground/batch"}


async def test_policy_allows_the_pages_own_style_and_script_and_no_other() -> None:
    reply = await fetch_page()
    policy = dict(item.split(" ", 1) for item in reply.headers["content-security-policy"].split("; "))
    for name, text in PageParts(reply.text).inline.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"]) == ("'none'", "'self'")
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in reply.headers["content-security-policy"]


async def test_page_has_nothing_that_its_policy_would_block() -> None:
    names = {name for name, _ in PageParts((await fetch_page()).text).attributes}
    assert "style" not in names
    assert not {name for name in names if name.startswith("on")}


async def test_page_never_makes_markup_of_text() -> None:
    script = PageParts((await fetch_page()).text).inline["script"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\(|Function\(", script)


async def test_batch_is_the_engines_snapshot() -> None:
    engine = FakeEngine(Script(pause_after=0))
    await engine.submit([GenerateRequest(prompt=prompt, params=SamplingParams()) for prompt in ("abc", "defg")])
    async with client_of(engine) as client:
        reply = await client.get("/playground/batch")
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
    snapshot = msgspec.json.decode(reply.content, type=BatchSnapshot)
    assert snapshot == await engine.inspect()
    assert [sequence.num_prompt_tokens for sequence in snapshot.sequences] == [3, 4]


@pytest.mark.parametrize("status", [EngineStatus.STOPPED, EngineStatus.DEAD])
async def test_batch_of_an_engine_that_is_gone_is_503(status: EngineStatus) -> None:
    engine = FakeEngine()
    engine.status = status
    async with client_of(engine) as client:
        reply = await client.get("/playground/batch")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")


@pytest.mark.covers("http/api-keys-guard")
async def test_page_is_open_where_the_batch_needs_a_key() -> None:
    async with client_of(FakeEngine(), ServerSettings(api_key=("secret",))) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/playground/batch")).status_code == 401
        allowed = await client.get("/playground/batch", headers={"Authorization": "Bearer secret"})
    assert allowed.status_code == 200


async def test_batch_is_documented_and_the_page_is_not() -> None:
    async with client_of(FakeEngine()) as client:
        paths = (await client.get("/schema/openapi.json")).json()["paths"]
    assert "/" not in paths
    assert {"200", "503"} <= set(paths["/playground/batch"]["get"]["responses"])


async def test_looks_at_the_same_time_are_one_look() -> None:
    engine = CountingEngine()
    snapshots = SharedSnapshots(engine)
    looks = [asyncio.ensure_future(snapshots.latest()) for _ in range(10)]
    engine.gate.set()
    found = await asyncio.gather(*looks)
    assert engine.num_looks == 1
    assert all(snapshot is found[0] for snapshot in found)


@pytest.mark.parametrize(("max_age_s", "num_looks"), [(3600.0, 1), (0.0, 2)], ids=["young", "old"])
async def test_a_look_is_shared_while_it_is_young(max_age_s: float, num_looks: int) -> None:
    engine = CountingEngine()
    engine.gate.set()
    snapshots = SharedSnapshots(engine, max_age_s=max_age_s)
    await snapshots.latest()
    await snapshots.latest()
    assert engine.num_looks == num_looks


async def test_a_caller_that_leaves_does_not_end_the_look_of_the_others() -> None:
    engine = CountingEngine()
    snapshots = SharedSnapshots(engine)
    leaver, stayer = (asyncio.ensure_future(snapshots.latest()) for _ in range(2))
    await asyncio.sleep(0)
    leaver.cancel()
    engine.gate.set()
    assert (await stayer).num_blocks == engine.info.num_kv_blocks
    assert leaver.cancelled()


async def test_a_failed_look_is_not_shared_with_later_callers() -> None:
    engine = FakeEngine()
    snapshots = SharedSnapshots(engine, max_age_s=3600.0)
    engine.status = EngineStatus.STOPPED
    with pytest.raises(EngineUnavailableError):
        await snapshots.latest()
    engine.status = EngineStatus.READY
    assert (await snapshots.latest()).num_blocks == engine.info.num_kv_blocks
