"""What docs/ says of flags, fields and metrics, against what the server has."""

import contextlib
import html
import io
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infer_models.text import TOOL_CALL_FORMATS
from infer_models.text.chat.tool_formats import tool_call_format_of
from infer_server import ServerSettings, create_app
from infer_server.cli import main
from infer_server.testing import FakeEngine

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["docs/clients.md", "docs/deployment.md", "docs/operations.md", "docs/playground.md", "docs/configuration.md"]
PAGES += [
    "README.md",
    "docs/index.md",
    "packages/infer-server/README.md",
    "docs/doctor.md",
    "docs/agents.md",
    "docs/compatibility.md",
]
PAGES += ["docs/models.md", "docs/tools.md", "docs/structured-output.md", "docs/embedding.md", "docs/index.md"]
PAGES += ["docs/changing.md", "SECURITY.md", ".github/ISSUE_TEMPLATE/bug.yml"]
# Flags of the other programs that these pages show.
OTHERS = {"--gpus", "--stop-timeout", "--frozen", "--no-default-groups", "--no-cache", "--no-cache-dir"}
OTHERS |= {"--interval", "--start-period", "--unix-socket", "--minutes", "--warmup-minutes", "--quick"}
OTHERS |= {"--workload", "--num-requests", "--rate-scale"}
FLAG = r"--[a-z][a-z0-9-]+"


@pytest.fixture
def flags() -> set[str]:
    """All flags of `infer-server` and its doctor, from their own help."""
    text = io.StringIO()
    for command in ([], ["doctor"]):
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*command, "--help"])
    # Long names are broken over lines: what is left of the frame joins them up again.
    lines = [re.sub(r"^│ {1,3}(\S*).*", r"\1", line) for line in text.getvalue().splitlines()]
    return set(re.findall(FLAG, re.sub(r"\n(?=[a-z])", "", "\n".join(lines)))) | set(re.findall(FLAG, text.getvalue()))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(FakeEngine(), settings=ServerSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:  # type: ignore[arg-type]  # litestar's own ASGI types
        yield client


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under `heading`, its own two lines left out."""
    section = text_of(page).split(f"## {heading}\n")[1].split("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in table[2:]]


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_that_a_page_names_is_there(page: str, flags: set[str]) -> None:
    assert set(re.findall(rf"(?<![\w-]){FLAG}", text_of(page))) - OTHERS - flags == set()


def test_every_flag_for_which_vllm_users_are_sent_here_is_there(flags: set[str]) -> None:
    table = rows("docs/from-vllm.md", "Flags")
    assert len(table) > 20
    for theirs, ours, _ in table:
        named = re.findall(FLAG, theirs if ours == "the same" else ours)
        assert set(named) - flags == set(), (theirs, ours)


async def test_every_field_for_which_vllm_users_are_sent_here_is_as_said(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/schema/openapi.json")).json()["paths"]
    known = {
        name
        for path in ("/v1/completions", "/v1/chat/completions")
        for name in paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    }
    said = {ours: set(re.findall(r"`(\w+)`", theirs)) for theirs, ours in rows("docs/from-vllm.md", "Request fields")}
    assert said["the same"] <= known
    assert len(said["the same"]) >= 7
    refused = said["refused by name, except at their neutral values"]
    assert len(refused) >= 4
    for name in refused:
        for value, status in ((None, 200), (["other"], 422)):
            reply = await client.post("/v1/completions", json={"prompt": "x", name: value})
            assert reply.status_code == status, (name, reply.text)


OF_STATES = {"infer:state_slots", "infer:num_state_evictions_total"}
"""Metrics of models whose layers have states: see `field/test_hybrid_conversations.py`."""


@pytest.mark.covers("http/metric-names")
async def test_metrics_are_those_that_the_documents_list(client: httpx.AsyncClient) -> None:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert listed_metrics() - OF_STATES == {name for name in names if not name.startswith("process_")}


def test_every_metric_for_which_vllm_users_are_sent_here_is_there() -> None:
    said = dict(rows("docs/from-vllm.md", "Metrics"))
    stems = {name for theirs, ours in said.items() if ours != "not there" for name in re.findall(r"`(\w+)`", theirs)}
    assert len(stems) > 25
    assert stems - {name.removeprefix("infer:") for name in listed_metrics()} == set()


def test_alerts_are_about_metrics_that_the_page_lists() -> None:
    alerts = text_of("docs/operations.md").split("### Alerts")[1].split("\n## ")[0]
    named = {name.removesuffix("_bucket") for name in re.findall(r"(?:infer:|http_)\w+", alerts)}
    assert len(named) >= 5
    assert named - listed_metrics() == set()


def listed_metrics() -> set[str]:
    """Return the names in the first column of the tables of docs/operations.md."""
    text = text_of("docs/operations.md")
    sections = [text.split(f"### {heading}\n")[1].split("\n#")[0] for heading in ("The engine", "Requests", "HTTP")]
    cells = [line.split(" | ")[0] for section in sections for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([\w:]+)", cell)}


def test_tests_that_the_kernels_page_names_are_there() -> None:
    """A path is relative to a package, that of the kernels or another one that the row names."""
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs/kernels.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    assert {
        path for path in named if not any((ROOT / "packages").glob(f"*/{path}")) and not (ROOT / path).exists()
    } == set()


def test_formats_of_tool_calls_are_found_by_what_the_documentation_says() -> None:
    text = html.unescape((ROOT / "docs" / "tools.md").read_text(encoding="utf-8").replace("&#124;", "\0"))
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \| ", text, re.MULTILINE))
    assert TOOL_CALL_FORMATS.keys() <= rows.keys()
    for name in TOOL_CALL_FORMATS.keys() - {"json"}:
        found_by, _, _ = rows[name].replace("\0", "|").partition(", but no ")
        codes = re.findall(r"`` (.+?) ``|`(.+?)`|<code>(.+?)</code>", found_by)
        marks = ["".join(each) for each in codes]
        for template in marks if " or " in found_by else [" ".join(marks)]:
            found = tool_call_format_of(template)
            assert found is not None, template
            assert found.name == name
