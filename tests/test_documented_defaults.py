"""What the help, the pages and the code say of each flag and its default: the same flags, the same values.

A default that the engine chooses is computed here by the code that chooses it, for each device.
"""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from infer_engine import EngineConfig, SamplingParams
from infer_engine.model_runner.graphs.prompt_tokens import LayerWeights, limit_prompts_beside_decodes
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_engine.scheduling import SchedulerLimits
from infer_engine.sizing import choose_block_size, size_step
from infer_kernels.gpu import Gpu
from infer_server import ServerSettings
from infer_server.cli import main
from infer_server.doctor.parts import CPU_TIMEOUT_S, GPU_TIMEOUT_S

DOCS = Path(__file__).resolve().parent.parent / "docs"
DEFAULTS = {
    field.name: field.default for config in (EngineConfig, ServerSettings) for field in dataclasses.fields(config)
}
ENGINE_FIELDS = [field.name for field in dataclasses.fields(EngineConfig)]
LEFT_OUT = [name for name, default in DEFAULTS.items() if default in (None, (), "")]
SET = [name for name in DEFAULTS if name not in LEFT_OUT]
ON_DEVICE = {
    "use_async_scheduling": "on with a GPU",
    "use_cuda_graphs": "on a GPU",
    "use_cpu_graphs": "on a CPU",
    "use_fused_products": "on a GPU",
}
"""Switches of one device: by field, the words of its help or its page."""

Numbers = dict[str, set[float]]
"""By `GPU` and `CPU`, and `` for values that do not depend on the device."""


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@cache
def shown(*command: str) -> dict[str, str]:
    """Return what the help says of each flag, its default included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "1000")  # each flag is one line
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            main([*command, "--help"])
    found = re.findall(r"^│ (--[a-z-]+)(.*?) *│?$", output.getvalue(), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


@cache
def documented() -> dict[str, str]:
    """Return the default of each field in the tables of docs/configuration.md."""
    text = (DOCS / "configuration.md").read_text(encoding="utf-8").split("## What goes together")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert len({row[0] for row in rows}) == len(rows)
    return {name.strip("`"): default for name, default, _ in rows}


def limits(device: str, **config: Any) -> SchedulerLimits:
    return size_step(EngineConfig(**config), device=torch.device(device), model_max_seq_len=10**6)


@cache
def derived() -> dict[str, Numbers]:
    """Return the numbers that the engine chooses for fields that are left out."""
    cpu, gpu = limits("cpu"), limits("cuda")
    contiguous = {
        limits(device, **config).max_batch_size
        for device in ("cpu", "cuda")
        for config in ({"batching_mode": "static"}, {"kv_cache_backend": "contiguous"})
    }
    blocks = {size: choose_block_size(EngineConfig(), head_dim=size) for size in range(16, 257, 16)}
    first_wide = next(size for size in blocks if blocks[size] != blocks[16])
    prompts = [
        limit_prompts_beside_decodes(
            gpu, LayerWeights(num_layers=28, of_a_token=weights, num_bytes=2 * weights), Gpu((9, 0), 132)
        )
        for weights in (7_500_000_000, 440_000_000)
    ]
    large, small = [each.max_prefill_tokens_beside_decodes for each in prompts]
    found: dict[str, dict[str, set[Any]]] = {
        "max_batch_size": {"": contiguous, "GPU": {gpu.max_batch_size}, "CPU": {cpu.max_batch_size}},
        "max_num_batched_tokens": {"GPU": {gpu.max_num_batched_tokens}, "CPU": {cpu.max_num_batched_tokens}},
        "prefill_chunk_size": {"GPU": {gpu.prefill_chunk_size}, "CPU": {cpu.prefill_chunk_size}},
        "max_prefill_tokens_beside_decodes": {"": {small}, "GPU": {large}},
        "max_decode_slowdown": {"CPU": {cpu.max_decode_slowdown}},
        "block_size": {"": {*blocks.values(), first_wide}},
    }
    return {name: {device: set(map(float, each)) for device, each in by.items()} for name, by in found.items()}


def numbers(text: str) -> set[float]:
    """Return the numbers of a text, without names that have some in them and what is in code."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)|bf16|(?<=\d),(?=\d{3})", "", text)
    return {float(number) for number in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])", plain)}


def check_left_out(text: str, name: str) -> None:
    """Check that a text gives the numbers that are chosen, and for which device."""
    by_device = derived().get(name, {})
    assert numbers(text) == set().union(*by_device.values()), text
    for device in ("GPU", "CPU"):
        for number in by_device.get(device, ()):
            assert f"{number:.0f} on a {device}" in text.replace(",", "") + " ", text


@pytest.mark.covers("command-line-and-library/help-agrees")
def test_every_flag_has_its_help_and_its_row_and_every_row_its_flag() -> None:
    assert {flag(name) for name in DEFAULTS} == set(shown()) - {"--help", "--version"}
    assert set(documented()) == set(DEFAULTS)


@pytest.mark.covers("command-line-and-library/help-agrees")
@pytest.mark.parametrize("name", SET)
def test_a_default_is_the_same_in_help_page_and_code(name: str) -> None:
    default = DEFAULTS[name]
    assert shown()[flag(name)].endswith(f"[default: {default}]")
    said = re.split(r"[ :,]", documented()[name].replace("`", ""))[0]
    if isinstance(default, bool):
        assert said == str(default).lower()
    elif isinstance(default, int | float):
        assert float(said) == default
    else:
        assert said == default


@pytest.mark.covers("command-line-and-library/help-agrees")
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_chosen_where_a_flag_is_left_out_is_the_same_in_help_page_and_code(name: str) -> None:
    _, _, left_out = shown()[flag(name)].partition("Left out: ")
    assert documented()[name]
    check_left_out(documented()[name], name)
    if name in ENGINE_FIELDS:
        assert left_out
    check_left_out(left_out.replace("max_num_batched_tokens", ""), name)


@pytest.mark.parametrize(("name", "words"), ON_DEVICE.items())
def test_a_switch_of_one_device_says_of_which(name: str, words: str) -> None:
    device = words.rpartition(" ")[2]
    assert device in shown()[flag(name)]
    assert f"on a {device}" in documented()[name]
    assert EngineConfig().schedules_ahead(on_gpu=True) is True
    assert EngineConfig().schedules_ahead(on_gpu=False) is False


def test_chunks_and_prefixes_are_on_where_nothing_forbids_them() -> None:
    assert EngineConfig().chunks_prefill
    assert EngineConfig().caches_prefixes
    for name in ("use_chunked_prefill", "use_prefix_caching"):
        assert "Left out: on if" in shown()[flag(name)]
        assert documented()[name].startswith("on ")


def test_every_value_of_a_request_has_its_row_as_it_is_declared() -> None:
    section = (DOCS / "configuration.md").read_text(encoding="utf-8").split("## Sampling\n")[1]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    defaults = msgspec.structs.asdict(SamplingParams())
    for row, (name, field) in zip(rows, SAMPLING_FIELDS.items(), strict=True):
        default = row.split("|")[2].strip()
        words = ("none", "from the base seed") if defaults[name] in (None, (), {}) else (f"{defaults[name]}".lower(),)
        others = ", ".join(f"`{other}`" for other in (*field.spellings, *field.aliases) if other != name)
        assert row == f"| `{name}` | {default} | {field.allowed} | {field.sentence} | {others} |"
        assert default in words


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_the_help_of_sampling_parameters_has_each_field(name: str) -> None:
    field = SAMPLING_FIELDS[name]
    assert f"    {name}: {field.sentence} Allowed: {field.allowed}.\n" in (SamplingParams.__doc__ or "")


def coverage() -> Iterator[tuple[str, str]]:
    """Yield each field of the engine with what the rows that begin with its name say of it."""
    text = (DOCS / "coverage" / "2-configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:Beyond the specification: )?`(\w+)`[:,] ([^|]*) \|", text, re.MULTILINE)
    for name in ENGINE_FIELDS:
        yield name, "; ".join(said for named, said in rows if named == name)


OF_NO_DEFAULT: dict[str, set[float]] = {"block_size": {1}}
"""Numbers of the coverage page that are no defaults: a block may have any size from 1."""


@pytest.mark.parametrize(("name", "said"), list(coverage()))
def test_the_coverage_page_has_a_row_for_each_field_and_gives_its_default(name: str, said: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "coverage").glob("*.md"))
    assert said or f"`{name}`" in pages or flag(name) in pages
    given, default = numbers(said) - OF_NO_DEFAULT.get(name, set()), DEFAULTS[name]
    if name in derived():
        assert given == set().union(*derived()[name].values())
    elif isinstance(default, int | float) and not isinstance(default, bool):
        assert given <= {float(default)}
    else:
        assert not given


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name not in ENGINE_FIELDS])
def test_a_coverage_page_has_each_flag_of_the_server(name: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "coverage").glob("*.md"))
    assert f"`{flag(name)}" in pages


def test_what_users_of_vllm_are_told_of_defaults_is_so() -> None:
    text = (DOCS / "from-vllm.md").read_text(encoding="utf-8").split("## Request fields")[0]
    checked = 0
    for line in (line for line in text.splitlines() if line.startswith("| `--")):
        _, ours, said = (cell.strip() for cell in line.strip("|").split("|"))
        for name in derived():
            if ours == f"`{flag(name)}`" and numbers(said):
                check_left_out(said, name)
                checked += 1
    assert checked == 1


def test_numbers_behind_flags_on_all_pages_are_their_defaults() -> None:
    found = [
        (page.name, named, number)
        for page in (*DOCS.glob("*.md"), *DOCS.parent.glob("packages/*/README.md"))
        for named, number in re.findall(r"`--([a-z-]+)`\s+\((\d+)\b", page.read_text(encoding="utf-8"))
        if named.replace("-", "_") in DEFAULTS
    ]
    assert {named for _, named, _ in found} >= {"shutdown-timeout", "sse-ping-interval"}
    assert [each for each in found if float(each[2]) != DEFAULTS[each[1].replace("-", "_")]] == []


def test_the_doctors_flags_are_on_its_page_with_its_seconds() -> None:
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    assert [name for name in shown("doctor") if name != "--help" and f"`{name}" not in page] == []
    row = next(line for line in page.splitlines() if line.startswith("| `--timeout`"))
    for text in (row, shown("doctor")["--timeout"]):
        assert f"by default {CPU_TIMEOUT_S:.0f}, and {GPU_TIMEOUT_S:.0f} on a GPU" in text
