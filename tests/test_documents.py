"""What docs/ says of flags, fields and metrics, against what the server has."""

import contextlib
import html
import io
import re
import tomllib
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from infer_models.config.registry import known_families
from infer_models.text import TOOL_CALL_FORMATS
from infer_models.text.chat.tool_formats import tool_call_format_of
from infer_proofs.server import FakeEngine
from infer_server import ServerSettings, create_app
from infer_server.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md", "benchmarks/README.md", "examples/README.md")
    for path in sorted(ROOT.glob(pattern))
]
OTHER_PROGRAMS = {
    "docs/clients.md": "--unix-socket",  # curl
    "docs/deployment.md": "--frozen --no-default-groups --no-cache --no-cache-dir --gpus --stop-timeout --interval "
    "--start-period",  # uv, pip, docker
    "docs/from-vllm.md": "--calculate-kv-scales",
    "docs/cpu.md": "--max-model-len --max-num-seqs --no-enable-prefix-caching",  # vLLM
    "docs/gguf.md": "--no-deps --parallel --fuse-qkv",  # pip, llama-server, llama.cpp's converter
    "docs/gpu.md": "--all-groups --gpus --index-url --ipc --shm-size --platform --python-version",  # uv, docker, pip
    "docs/operations.md": "--extra --all-packages",  # uv
    "docs/quantization.md": "--poll --prio",  # llama-bench
    "docs/ray.md": "--address --dashboard-host --head --num-cpus --num-gpus --package --route-prefix",  # ray, uv
    "packages/infer-kernels/README.md": "--wheel --package --out-dir",  # uv
    "packages/infer-ray/README.md": "--package",
    "CONTRIBUTING.md": "--group",
    "README.md": "--group --no-sync --torch-backend",  # uv
    "benchmarks/README.md": "--group",
    "docs/benchmarks.md": "--group",
    "docs/changing.md": "--group",
    "docs/platforms.md": "--from --group --no-sync --torch-backend",
    "docs/nanogpt.md": "--with",
    "examples/README.md": "--with",
    "CHANGELOG.md": "--address --torch-backend",  # ray, uv
}
"""Flags of other programs that these pages show."""
COMING_FROM = ("docs/from-vllm.md", "docs/from-llama-cpp.md")
"""Pages whose tables begin with flags of another server."""
NOT_HERE = {
    "ggml-cpu/amx/mmq.cpp",  # of llama.cpp
    "models/llama/modeling_llama.py",  # of `transformers`
    "benchmarks/results/first-light.json",  # which a command writes
    "results/x.json",  # a name to be chosen
}
"""Paths that pages name and that are not in the repository."""
FLAG = r"--[a-z][a-z0-9-]+"


@pytest.fixture(scope="module")
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


@cache
def flags_of_sources() -> set[str]:
    """All flags that a program of this repository spells out: benchmarks, examples, the server on Ray."""
    paths = [*ROOT.glob("benchmarks/src/**/*.py"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    texts = [path.read_text(encoding="utf-8") for path in (*paths, ROOT / "noxfile.py")]
    options = text_of("packages/infer-ray/src/infer_ray/options.py")  # each field is a flag of `infer-ray serve`
    fields = re.findall(r"^    (\w+): ", options, re.MULTILINE)
    named = re.findall(rf"[\"' ]({FLAG})(?=[\"'= ])", "".join(texts))
    return {*named, *(f"--{field.replace('_', '-')}" for field in fields)}


def own_words(page: str) -> str:
    """Return a page without the first column of its tables, where that has the words of another server."""
    text = text_of(page)
    return re.sub(r"^\|[^|]*", "", text, flags=re.MULTILINE) if page in COMING_FROM else text


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_that_a_page_names_is_there(page: str, flags: set[str]) -> None:
    known = flags | flags_of_sources() | set(OTHER_PROGRAMS.get(page, "").split())
    assert set(re.findall(rf"(?<![\w-]){FLAG}", own_words(page))) - known == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    """A path of code may be written from any folder on: `families/llama/model.py` of its package."""
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.(?:py|cpp|h|toml|json|yaml|md))`", text_of(page)))
    named = {path for path in named if "NAME" not in path}
    assert {path for path in named if f"/{path}\n" not in files()} - NOT_HERE == set()


@cache
def files() -> str:
    """Return the files of this repository: a line each, which begins and ends with a slash and a line break."""
    folders = ("packages", "docs", "tests", "benchmarks", "examples", "scripts", ".ci", ".github")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    return "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in (*paths, *ROOT.glob("*.*")))


@pytest.mark.parametrize("page", PAGES)
def test_every_package_that_a_page_installs_is_one_of_the_index(page: str) -> None:
    """Packages of this repository are installed from it: no index has them."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    known = {package["name"] for package in lock["package"] if "registry" in package["source"]}
    commands = re.findall(r"(?:pip install|uv add|uvx) ([^`\n&#@]*)", text_of(page))
    words = [word.strip("'") for command in commands for word in command.split()]
    names = {match[0] for word in words if (match := re.match(r"[A-Za-z][\w-]*(?=$|[=<>\[])", word))}
    assert names - known - {"pre-commit", "install"} == set()  # `uvx pre-commit install`


def test_the_models_page_of_the_package_lists_every_family() -> None:
    table = text_of("packages/infer-models/README.md")
    assert [name for name in known_families() if f"`{name}`" not in table] == []


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
