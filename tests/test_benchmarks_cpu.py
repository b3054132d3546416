"""The CPU benchmarks: limits and shares that follow from times, sides that take turns, stages that add up."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_engine.protocol import EngineStats
from infer_models import ModelConfig
from infer_server.testing import FakeEngine, Script, running_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import cpu_race
import cpu_steps
from cpu_floor import Floor, LinearFloor, floor_process, load_packed
from make_checkpoint import write_checkpoint
from race_client import RaceServer
from race_report import METRICS, Race
from race_rounds import RacePlan, Shares, Turn
from server_processes import ResidentMemory, core_environment, processes_behind, resident_memory
from shapes import SHAPES, write_shape
from workloads import PlannedRequest

FLOOR = Floor(row_ms=10.0, batch_ms=20.0, prompt_ms=1024.0)
IDLE = ResidentMemory(own_bytes=int(2.5e9), file_bytes=int(0.5e9))
PLAN = RacePlan(vocab_size=8192)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `--write-checkpoint` makes of the smallest shape."""
    return write_checkpoint("llama-30m", tmp_path_factory.mktemp("made") / "llama-30m")


def turn(scale: float = 1.0) -> Turn:
    return Turn(
        batch_tokens_per_s=100.0 * scale,
        itl_p50_ms=40.0 / scale,
        itl_p99_ms=80.0 / scale,
        ttft_ms=500.0 / scale,
        stream_tokens_per_s=50.0 * scale,
        prefill_ms=2048.0 / scale,
    )


def request(num_new: int) -> PlannedRequest:
    return PlannedRequest(arrival_s=0.0, prompt=[5, 6, 7], max_tokens=num_new)


# Limits and shares


def test_the_limit_of_w_is_its_prompts_and_its_decode_steps_at_the_products_own_time() -> None:
    limit = FLOOR.limit_tokens_per_s(num_prompt_tokens=1740, num_steps=63, num_tokens=1024)
    assert limit == pytest.approx(1024 / (1.740 + 63 * 0.020))


def test_the_floors_share_is_its_part_of_a_tokens_time() -> None:
    assert FLOOR.stream_share(tokens_per_s=80.0) == pytest.approx(0.8)
    assert FLOOR.prefill_share(2048.0, num_tokens=1024) == pytest.approx(0.5)
    assert FLOOR.prefill_share(2048.0, num_tokens=512) == pytest.approx(0.25)


def test_shares_are_those_of_what_was_asked() -> None:
    prompts = sum(len(each.prompt) for each in PLAN.batch("any"))
    shares = Shares.of(turn(), FLOOR, PLAN)
    assert shares.batch == pytest.approx(100.0 * (prompts * 1e-3 + 63 * 0.020) / 1024)
    assert shares.stream == pytest.approx(0.5)
    assert shares.prefill == pytest.approx(0.5)


def test_ratios_above_one_are_in_our_favour() -> None:
    race = Race(plan=PLAN, turns={"infer": [turn(2.0)], "peer": [turn()]}, floors=[FLOOR], idle=IDLE, weight_bytes=1)
    assert race.ratios("peer") == {metric.field: pytest.approx(2.0) for metric in METRICS}


def test_a_race_reports_medians_of_its_rounds() -> None:
    turns = {"infer": [turn(), turn(4.0), turn(2.0)]}
    race = Race(plan=PLAN, turns=turns, floors=[FLOOR] * 3, idle=IDLE, weight_bytes=int(1e9))
    assert race.medians("infer") == turn(2.0)
    assert "| W, tokens/s | 200.0 (100.0 - 400.0) |" in race.tables()
    assert "3.00 GB, 2.00 GB over the weights' 1.00 GB; 0.50 GB are pages" in race.tables()
    assert "times better" not in race.tables()


# What is asked


def test_rounds_differ_in_contents_and_never_in_lengths() -> None:
    first, second = PLAN.batch("0"), PLAN.batch("1")
    assert [len(each.prompt) for each in first] == [len(each.prompt) for each in second]
    assert all(each.prompt != other.prompt for each, other in zip(first, second, strict=True))
    assert len(first) == 16
    assert all(32 <= len(each.prompt) <= 256 and each.max_tokens == 64 for each in first)


def test_prompts_are_of_ids_that_every_tokenizer_knows() -> None:
    for vocab_size, end in ((8192, 8000), (1024, 1024)):
        (long,) = RacePlan(vocab_size=vocab_size).prefill("0")
        assert len(long.prompt) == 1024
        assert set(long.prompt) <= set(range(3, end))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give one of"),
        (["--demo", "--model", "m"], "give one of"),
        (["--demo", "--peer", "a=http://h:1"], "`--peer` needs `--model`"),
        (["--model", "m", "--peer", "a"], "no NAME=URL"),
        (["--model", "m", "--peer", "infer=http://h:1"], "a name of its own"),
        (["--model", "m", "--rounds", "0"], "at least 1"),
        (["--model", "m", "--pause", "-1"], "at least 0"),
        (["--model", "m", "--scale", "0"], "positive"),
        (["--write-checkpoint", "gpt-9", "f"], "is no shape"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cpu_race.main(flags)
    assert message in capsys.readouterr().err


def test_a_peer_is_a_name_an_url_and_maybe_a_model() -> None:
    assert cpu_race.parse_peer("a.b=http://h:1/v1/") == RaceServer(name="a.b", url="http://h:1")
    assert cpu_race.parse_peer("a=http://h:1,org/m") == RaceServer(name="a", url="http://h:1", model="org/m")


# The client


async def test_a_token_without_text_counts_and_an_end_without_a_token_does_not() -> None:
    script = Script(steps=(((1,), ""), ((2,), "x"), ((3,), "y")))
    async with running_server(FakeEngine(script)) as url:
        (answer,) = await asyncio.to_thread(RaceServer(name="fake", url=url).ask, [request(3)])
    assert answer.num_tokens == len(answer.token_times_s) == 3
    assert answer.sent_s < answer.token_times_s[0] <= answer.token_times_s[-1] <= answer.ended_s
    assert len(answer.gaps_ms) == 2


async def test_an_answer_of_another_length_ends_the_race() -> None:
    async with running_server(FakeEngine()) as url:
        with pytest.raises(RuntimeError, match=r"fake at .* counts 3 tokens in an answer of 5"):
            await asyncio.to_thread(RaceServer(name="fake", url=url).ask, [request(5)])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"gone at http://127\.0\.0\.1:9"):
        RaceServer(name="gone", url="http://127.0.0.1:9").ask([request(2)])


# Checkpoints and floors


def test_a_written_checkpoint_has_a_tokenizer_of_exactly_its_vocabulary(checkpoint: Path) -> None:
    load: Callable[..., Any] = AutoTokenizer.from_pretrained
    tokenizer = load(checkpoint)
    assert len(tokenizer) == len(tokenizer.get_vocab()) == ModelConfig.from_folder(checkpoint).vocab_size == 8192
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<bos>", "<eos>"]) == [0, 1, 2]
    assert tokenizer.decode(tokenizer.encode("Any text, naïve or 日本: all bytes are there.")).startswith(
        "Any text, naï"
    )


@pytest.mark.parametrize(
    ("shape", "num_parameters", "is_tied"), [("llama-135m-8k", 0.12e9, False), ("qwen3-0.6b-8k", 0.45e9, True)]
)
def test_shapes_are_of_the_sizes_that_are_raced(
    tmp_path: Path,
    shape: str,
    num_parameters: float,
    is_tied: bool,  # noqa: FBT001 - a case
) -> None:
    config = ModelConfig.from_folder(write_shape(shape, tmp_path))
    assert (config.vocab_size, config.max_position_embeddings, config.dtype) == (8192, 4096, "bfloat16")
    heads = 2 * (config.q_heads + config.kv_heads) * config.head_dim
    layers = config.num_layers * config.hidden_size * (heads + 3 * config.intermediate_size)
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    assert layers + tables == pytest.approx(num_parameters, rel=0.05)
    assert config.tie_word_embeddings is is_tied


def test_every_dense_layer_is_in_the_floor(tmp_path: Path) -> None:
    model = load_packed(write_shape("llama-30m", tmp_path), is_dummy=True)
    rows: list[tuple[int, int]] = []
    for module in model.modules():
        if hasattr(module, "product"):
            module.register_forward_hook(lambda layer, given, _: rows.append((len(given[0]), len(layer.weight))))
    LinearFloor(model).measure_ms(40, repeats=1)
    in_a_pass = rows[: len(rows) // 2]
    assert len(in_a_pass) == 8 * 4 + 1  # qkv, o, gate-up, down; the head
    assert in_a_pass[-1] == (16, SHAPES["llama-30m"]["vocab_size"])
    assert {count for count, _ in in_a_pass[:-1]} == {40}


# The whole


def test_a_race_against_ourselves_saves_every_round(
    checkpoint: Path, tmp_path: Path, serve: Callable[..., AbstractContextManager[Any]]
) -> None:
    with serve("--model", str(checkpoint)) as peer:
        flags = [
            "--model",
            str(checkpoint),
            "--peer",
            f"twin={peer.url}",
            "--rounds",
            "2",
            "--scale",
            "0.05",
            "--pause",
            "0",
        ]
        cpu_race.main([*flags, "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "cpu-race-llama-30m.json").read_text())
    assert {side: len(turns) for side, turns in saved["turns"].items()} == {"infer": 2, "twin": 2}
    assert list(saved["ratios"]) == ["twin"]
    assert len(saved["floors"]) == 2
    assert all(value > 0 for floor in saved["floors"] for value in floor.values())
    assert saved["idle_bytes"] > saved["weight_bytes"] > 50e6
    assert saved["idle_bytes"] / 4 > saved["idle_file_bytes"] > 1e6  # the core has let go of what loading read


def test_the_floors_process_has_the_variables_of_the_one_that_computes(
    folder: Path,
    tmp_path: Path,
    serve: Callable[..., AbstractContextManager[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with serve("--model", str(folder)) as server:
        processes = processes_behind(server.url)
        input_processor, both = resident_memory(processes[:1]), resident_memory(processes)
        assert both.own_bytes > input_processor.own_bytes > 1e6
        assert both.file_bytes > input_processor.file_bytes > 1e6
        assert resident_memory(processes * 2).file_bytes == pytest.approx(both.file_bytes, rel=0.01)
        environment = core_environment(processes)
    assert environment["OMP_NUM_THREADS"] == "1"
    with (
        pytest.raises(RuntimeError, match=r"`cpu_floor\.py` ended with exit code"),
        floor_process(tmp_path, environment=environment),
    ):
        pass


def test_stages_add_up_to_the_step_without_what_was_done_twice() -> None:
    stats = EngineStats(schedule_s=0.001, execute_s=0.040, sample_s=0.002)
    stages = cpu_steps.stages_of(stats, busy_s=0.044, floor_ms=20.0, beside=(0.003, 0.002))
    assert stages.step_ms == pytest.approx(44 - 5)
    assert stages.model_ms == pytest.approx(40 - 5 - 5 - 20)
    assert stages.outputs_ms == pytest.approx(1)
    assert stages.floor_share == pytest.approx(20 / 39)


@pytest.mark.parametrize(("least_share", "code"), [("0.001", 0), ("1.0", 1)])
def test_a_floor_whose_share_is_too_small_fails(
    least_share: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--quick", "--rounds", "1", "--steps", "2", "--least-share", least_share]
    assert cpu_steps.main(flags) == code
    captured = capsys.readouterr()
    assert "| dense layers alone (the floor) |" in captured.out
    assert ("`--least-share` is" in captured.err) == bool(code)


@pytest.mark.parametrize("flags", [["--rounds", "0"], ["--steps", "0"], ["--least-share", "1.5"]])
def test_steps_that_cannot_be_measured_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu_steps.main(flags)
    assert f"`{flags[0]}` is" in capsys.readouterr().err
