"""Comparisons with peers, and the CPU's floor: shares that follow from times, stages that add up."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_bench.checkpoints import write_checkpoint
from infer_bench.cpu import steps as cpu_steps
from infer_bench.cpu.floor import Floor, LinearFloor, floor_process, load_packed
from infer_bench.server.launch import serving
from infer_bench.server.processes import ResidentMemory, core_environment, processes_behind, resident_memory
from infer_bench.serving import peers
from infer_bench.serving.peer_rounds import METRICS, Comparison, Plan, Turn
from infer_bench.serving.peers import Side, parse_peer
from infer_bench.shapes import SHAPES, write_config
from infer_engine.protocol import EngineStats
from infer_models import ModelConfig
from infer_models.layers import LinearBase
from infer_server.testing import FakeEngine, Script, running_server

FLOOR = Floor(row_ms=10.0, batch_ms=20.0, prompt_ms=1024.0)
IDLE = ResidentMemory(own_bytes=int(2.5e9), file_bytes=int(0.5e9))
PLAN = Plan(vocab_size=8192)
TINY = SHAPES["llama-30m"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write-checkpoint` makes, of a shape with little to compute."""
    return write_checkpoint(TINY, tmp_path_factory.mktemp("made") / "tiny")


def turn(scale: float = 1.0) -> Turn:
    return Turn(
        batch_tokens_per_s=100.0 * scale,
        itl_p50_ms=40.0 / scale,
        itl_p99_ms=80.0 / scale,
        ttft_ms=500.0 / scale,
        stream_tokens_per_s=50.0 * scale,
        prefill_ms=2048.0 / scale,
    )


def comparison(**turns: list[Turn]) -> Comparison:
    return Comparison(plan=PLAN, turns=turns, floors=[FLOOR] * 3, idle=IDLE, weight_bytes=int(1e9))


def test_the_limit_of_w_is_its_prompts_and_its_decode_steps_at_the_products_own_time() -> None:
    limit = FLOOR.limit_tokens_per_s(num_prompt_tokens=1740, num_steps=63, num_tokens=1024)
    assert limit == pytest.approx(1024 / (1.740 + 63 * 0.020))
    assert FLOOR.stream_share(tokens_per_s=80.0) == pytest.approx(0.8)
    assert FLOOR.prefill_share(2048.0, num_tokens=512) == pytest.approx(0.25)


def test_shares_are_those_of_what_was_asked() -> None:
    prompts = sum(len(each.prompt) for each in PLAN.batch("any").requests)
    assert comparison(infer=[turn()]).shares("infer") == {
        "batch": pytest.approx(100.0 * (prompts * 1e-3 + 63 * 0.020) / 1024),
        "stream": pytest.approx(0.5),
        "prefill": pytest.approx(0.5),
    }


def test_ratios_above_one_are_in_our_favour() -> None:
    found = comparison(infer=[turn(2.0)], peer=[turn()])
    assert found.ratios("peer") == dict.fromkeys(METRICS, pytest.approx(2.0))


def test_a_comparison_reports_medians_of_its_rounds() -> None:
    found = comparison(infer=[turn(), turn(4.0), turn(2.0)])
    assert found.medians("infer") == turn(2.0)
    assert "| W, tokens/s | 200.0 (100.0 - 400.0) |" in found.tables()
    assert "3.00 GB, 2.00 GB over the weights' 1.00 GB; 0.50 GB are pages" in found.tables()
    assert "times better" not in found.tables()


def test_rounds_differ_in_contents_and_never_in_lengths() -> None:
    first, second = PLAN.batch("0").requests, PLAN.batch("1").requests
    assert [len(each.prompt) for each in first] == [len(each.prompt) for each in second]
    assert all(each.prompt != other.prompt for each, other in zip(first, second, strict=True))
    assert len(first) == 16
    assert all(32 <= len(each.prompt) <= 256 and each.max_tokens == 64 for each in first)
    [long] = Plan(vocab_size=1024).prefill("0").requests
    assert len(long.prompt) == 1024
    assert set(long.prompt) <= set(range(3, 1024))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "give one of"),
        ("--demo --model m", "give one of"),
        ("--demo --peer a=http://h:1", "`--peer` needs `--model`"),
        ("--model m --peer a", "no NAME=URL"),
        ("--model m --peer infer=http://h:1", "a name of its own"),
        ("--model m --rounds 0", "`--rounds` is 0"),
        ("--model m --scale 0", "`--scale` is 0"),
    ],
)
def test_a_comparison_that_cannot_be_run_is_refused(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        peers.main(flags.split())
    assert message in capsys.readouterr().err


def test_a_peer_is_a_name_an_url_and_maybe_a_model() -> None:
    assert parse_peer("a.b=http://h:1/v1/") == Side(name="a.b", url="http://h:1")
    assert parse_peer("a=http://h:1,org/m") == Side(name="a", url="http://h:1", model="org/m")


async def test_an_answer_of_another_length_ends_the_comparison() -> None:
    plan = Plan(vocab_size=100)
    async with running_server(FakeEngine(Script(steps=(((1,), ""), ((2,), "x"), ((3,), "y"))))) as url:
        side = Side(name="fake", url=url)
        [three] = await asyncio.to_thread(side.ask, plan.requests([5], 3, contents="a"))
        with pytest.raises(RuntimeError, match=r"fake at .* counts 3 tokens in an answer of 5"):
            await asyncio.to_thread(side.ask, plan.requests([5], 5, contents="b"))
    assert three.num_tokens == len(three.token_times_s) == 3
    with pytest.raises(RuntimeError, match=r"gone at http://127\.0\.0\.1:9"):
        await asyncio.to_thread(Side(name="gone", url="http://127.0.0.1:9").ask, plan.stream("c"))


def test_a_written_checkpoint_has_a_tokenizer_of_exactly_its_vocabulary(checkpoint: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == len(tokenizer.get_vocab()) == ModelConfig.from_folder(checkpoint).vocab_size == 8192
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<bos>", "<eos>"]) == [0, 1, 2]
    assert tokenizer.decode(tokenizer.encode("Any text, naïve or 日本: all bytes.")).startswith("Any text, naï")


@pytest.mark.parametrize(
    ("shape", "num_parameters"),
    [
        ("smollm-135m", 0.135e9),
        ("llama-135m-8k", 0.12e9),
        ("qwen3-0.6b-8k", 0.45e9),
        ("llama-3.2-3b", 3.2e9),
        ("qwen3-4b", 4.0e9),
        ("gemma-3-1b", 1.0e9),
    ],
)
def test_shapes_are_of_the_sizes_that_they_are_called_after(tmp_path: Path, shape: str, num_parameters: float) -> None:
    config = ModelConfig.from_folder(write_config(shape, tmp_path))
    heads = 2 * (config.q_heads + config.kv_heads) * config.head_dim
    layers = config.num_layers * config.hidden_size * (heads + 3 * config.intermediate_size)
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    assert layers + tables == pytest.approx(num_parameters, rel=0.05)
    assert config.dtype == "bfloat16"


def test_every_dense_layer_is_in_the_floor(tmp_path: Path) -> None:
    model = load_packed(write_config("llama-30m", tmp_path), is_dummy=True)
    rows: list[tuple[int, int]] = []
    for module in model.modules():
        if isinstance(module, LinearBase):
            module.register_forward_hook(lambda layer, given, _: rows.append((len(given[0]), len(layer.weight))))
    LinearFloor(model).measure_ms(40, repeats=1)
    in_a_pass = rows[: len(rows) // 2]
    assert len(in_a_pass) == 8 * 4 + 1  # qkv, o, gate-up, down; the head
    assert in_a_pass[-1] == (16, SHAPES["llama-30m"]["vocab_size"])
    assert {count for count, _ in in_a_pass[:-1]} == {40}


def test_a_comparison_with_ourselves_saves_every_round(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with serving(["--model", str(checkpoint)]) as stub:
        processes = processes_behind(stub.url)
        one, both = resident_memory(processes[:1]), resident_memory(processes)
        assert core_environment(processes)["OMP_NUM_THREADS"] == "1"
        flags = ["--peer", f"stub={stub.url}", "--rounds", "2", "--scale", "0.05", "--pause", "0"]
        peers.main(["--model", str(checkpoint), *flags, "--out", str(tmp_path)])
    assert both.own_bytes > one.own_bytes > 1e6
    assert both.file_bytes > one.file_bytes > 1e6
    saved = json.loads((tmp_path / "peers-tiny.json").read_text())
    assert {side: len(turns) for side, turns in saved["turns"].items()} == {"infer": 2, "stub": 2}
    assert list(saved["ratios"]) == ["stub"]
    assert len(saved["floors"]) == 2
    assert all(value > 0 for floor in saved["floors"] for value in floor.values())
    assert saved["idle_bytes"] > saved["weight_bytes"] > 2e6
    assert saved["agreements"]["stub"]["num_same_answers"] == 16
    assert "16 of 16 answers are the same text" in capsys.readouterr().out


def test_a_floor_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"`infer-bench cpu-floor` ended with exit code"),
        floor_process(tmp_path, environment={}),
    ):
        pass


def test_stages_add_up_to_the_step_without_what_was_done_twice() -> None:
    stats = EngineStats(schedule_s=0.001, execute_s=0.040, sample_s=0.002)
    stages = cpu_steps.stages_of(stats, busy_s=0.044, floor_ms=20.0, beside=(0.003, 0.002))
    assert stages.step_ms == pytest.approx(44 - 5)
    assert stages.model_ms == pytest.approx(40 - 5 - 5 - 20)
    assert stages.outputs_ms == pytest.approx(1)
    assert stages.floor_share == pytest.approx(20 / 39)


def test_a_floor_whose_share_is_too_small_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "llama-30m", TINY)
    assert cpu_steps.main(["--quick", "--rounds", "1", "--steps", "2", "--least-share", "1.0"]) == 1
    captured = capsys.readouterr()
    assert "| dense layers alone (the floor) |" in captured.out
    assert "`--least-share` is" in captured.err
