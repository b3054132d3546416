"""Comparisons with peers: a server at a time, ratios in our favour; written checkpoints and processes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_bench.checkpoints import write_checkpoint
from infer_bench.server.processes import processes_behind, resident_memory
from infer_bench.serving import peers
from infer_bench.serving.peers import (
    ask,
    batch,
    own_command,
    pairs,
    read_arguments,
    requests,
    running,
    times_better,
)
from infer_bench.shapes import SHAPES, write_config
from infer_models import ModelConfig
from infer_proofs.server import FakeEngine, Script, running_server

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


def test_ratios_above_one_are_in_our_favour() -> None:
    assert times_better(200.0, 100.0, "W, tokens/s") == times_better(50.0, 100.0, "prefill, ms") == 2.0


def test_rounds_differ_in_contents_and_never_in_lengths() -> None:
    first, second = batch("0", 1.0).requests, batch("1", 1.0).requests
    assert [len(each.prompt) for each in first] == [len(each.prompt) for each in second]
    assert all(each.prompt != other.prompt for each, other in zip(first, second, strict=True))
    assert len(first) == 16
    assert all(32 <= len(each.prompt) <= 256 and each.max_tokens == 64 for each in first)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model"),
        (["--peer", "a"], "a name of its own, `=` and a command with `{port}`"),
        (["--peer", "a=serve"], "a command with `{port}`"),
        (["--peer", "infer={port}"], "a name of its own"),
        (["--rounds", "0"], "must be positive"),
        (["--peer", "int8:a={port}"], "int8 is none of the schemes none"),
        (["--schemes", "int8", "int4", "--peer", "int8:a={port}", "--peer", "int4:a={port}"], "a name of its own"),
    ],
)
def test_a_comparison_that_cannot_be_run_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_arguments([*(["--model", "m"] if flags else []), *flags])
    assert message in capsys.readouterr().err


def test_a_server_that_ends_before_it_is_ready_is_named() -> None:
    with (
        pytest.raises(RuntimeError, match="was not ready; its exit code is 3"),
        running([sys.executable, "-c", "raise SystemExit(3)"], start_s=60),
    ):
        pass


async def test_an_answer_of_another_length_ends_the_comparison() -> None:
    async with running_server(FakeEngine(Script(steps=(((1,), ""), ((2,), "x"), ((3,), "y"))))) as url:
        [three] = await ask(url, requests("a", [5], 3, 1.0))
        with pytest.raises(RuntimeError, match=r"b: 3 tokens came of 5"):
            await ask(url, requests("b", [5], 5, 1.0))
    assert three.num_tokens == len(three.token_times_s) == 3
    with pytest.raises(RuntimeError, match="ConnectError"):
        await ask("http://127.0.0.1:9", requests("c", [5], 3, 1.0))


@pytest.mark.parametrize(
    ("schemes", "own", "memory"),
    [(["none"], ["infer"], peers.IDLE_MEMORY), (["none", "fcfs"], ["infer none", "infer fcfs"], peers.ALL_MEMORY)],
)
def test_a_comparison_with_ourselves_saves_every_round_of_every_side(
    schemes: list[str],
    own: list[str],
    memory: str,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stub = f"{schemes[-1]}:stub={sys.executable} -m infer_server --model {checkpoint} --port {{port}}"
    flags = ["--schemes", *schemes, "--scheme-flags", "--scheduler-policy {scheme}", "--peer", stub, "--rounds", "1"]
    how = ["--scale", "0.05", "--device", "cpu", "--name", "race", "--out", str(tmp_path)]
    peers.main(["--model", str(checkpoint), *flags, *how])
    saved = json.loads((tmp_path / "race.json").read_text())
    assert {side: len(turns) for side, turns in saved["turns"].items()} == dict.fromkeys([*own, "stub"], 1)
    assert all(value > 0 for turns in saved["turns"].values() for value in turns[0].values())
    assert [side for side, words in saved["commands"].items() if "--scheduler-policy fcfs" in words] == own[1:]
    compared = [*(f"{each} / {own[0]}" for each in own[1:]), f"{own[-1]} / stub"]
    assert list(saved["ratios"]) == list(saved["agreements"]) == compared
    assert saved["medians"][own[-1]][memory] > 0.1
    assert saved["ratios"][compared[-1]][memory] == pytest.approx(1.0, rel=0.2)
    assert saved["agreements"][compared[-1]]["num_same_answers"] == 16
    printed = capsys.readouterr().out
    assert f"| times better | {' | '.join(compared)} |" in printed
    assert f"{compared[-1]}: 16 of 16 answers are the same text" in printed


def test_a_servers_memory_is_that_of_all_its_processes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "infer_server", "--model", str(checkpoint), "--port", "{port}"]
    with running(command, start_s=60) as url:
        processes = processes_behind(url)
        one, both = resident_memory(processes[:1]), resident_memory(processes)
    assert both.own_bytes > one.own_bytes > 1e6
    assert both.file_bytes > one.file_bytes > 1e6


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


def flags_of(scheme: str, *more: str) -> list[str]:
    args = read_arguments(["--model", "m", *more])
    command = own_command(Path("m"), scheme, args)
    return command[command.index("{port}") + 1 :]


def test_each_scheme_is_compared_with_none_and_then_with_its_peers() -> None:
    named = ["--peer", "int8:theirs={port}", "--peer", "int8:others={port}"]
    own = ["infer int8 / infer none", "infer int4 / infer none"]
    others = ["infer int8 / theirs", "infer int8 / others"]
    three = read_arguments(["--model", "m", *named, "--schemes", "none", "int8", "int4"])
    assert list(pairs(three)) == [*own, *others]
    assert list(pairs(read_arguments(["--model", "m", *named, "--schemes", "int8"]))) == others


def test_only_quantized_sides_get_the_flags_that_quantize() -> None:
    drafts = ["--speculative-config", "none"]  # as the peers' servers
    served = ("--serve", "--max-batch-size", "4")
    assert flags_of("none", *served) == [*drafts, "--max-batch-size", "4"]
    assert flags_of("int8", *served) == [*drafts, "--quantization", "int8", "--max-batch-size", "4"]
    assert flags_of("int4", "--scheme-flags", "--weights {scheme} --x") == [*drafts, "--weights", "int4", "--x"]
    assert flags_of("none", "--serve", "--speculative-config", "{}") == ["--speculative-config", "{}"]
