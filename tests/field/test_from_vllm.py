"""What `docs/from-vllm.md` promises to programs, dashboards and command lines that were written for vLLM."""

import re
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

from infer_engine.protocol import EngineConfig, FinishReason
from infer_proofs.server import FakeEngine
from infer_server import ServerSettings, create_app

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    text = (DOCS / "from-vllm.md").read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return table[2:]


def flags() -> set[str]:
    """Return the flags that the command has."""
    names = {field.name.replace("_", "-") for group in (ServerSettings, EngineConfig) for field in fields(group)}
    return {f"--{name}" for name in names} | {f"--no-{name}" for name in names}


@pytest.mark.parametrize("row", rows("Flags"), ids=lambda row: row[0])
def test_every_flag_that_is_named_exists(row: list[str]) -> None:
    theirs, ours, remark = row
    named = [*re.findall(r"`(--[a-z-]+)", ours), *(re.findall(r"`(--[a-z-]+)", theirs) if ours == "the same" else ())]
    assert set(named) <= flags()
    assert named or "`infer-ray serve`" in ours or "not there" in remark or not theirs.startswith("`--")


async def test_every_metric_that_is_the_same_exists() -> None:
    app = create_app(FakeEngine(), settings=ServerSettings())
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # litestar's own ASGI types
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        await client.post("/v1/completions", json={"prompt": "a"})
        text = "\n" + (await client.get("/metrics")).text
    promised = [
        name for theirs, ours, *_ in rows("Metrics") if "the same" in ours for name in re.findall("`([a-z_]+)`", theirs)
    ]
    assert len(promised) > 20
    for name in promised:
        assert f"\n# HELP {'' if name.startswith('http_') else 'infer:'}{name.removesuffix('_total')}" in text, name
    [config] = re.findall(r"^infer:cache_config_info\{(.*)\}", text, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', config))
    assert labels["num_gpu_blocks"] == labels["num_kv_blocks"]
    assert int(labels["block_size"]) > 0


def test_every_end_of_a_request_is_documented() -> None:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| `infer:request_success_total")]
    ends = row.split("|")[3].split("vLLM's")[0]
    assert {reason.value for reason in FinishReason} == set(re.findall("`([a-z]+)`", ends))
