"""Quantized weights beside none and beside peers: who is compared with whom, which flags a side gets, what is saved."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from infer_bench.checkpoints import write_checkpoint
from infer_bench.serving import quantized_peers
from infer_bench.serving.peers import Race
from infer_bench.serving.quantized_peers import compare, own_command, pairs, read_arguments
from infer_bench.shapes import SHAPES

TINY = SHAPES["llama-30m"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
PEER = ["--peer", "int8", "theirs", "serve --port {port}"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write-checkpoint` makes, of a shape with little to compute."""
    return write_checkpoint(TINY, tmp_path_factory.mktemp("made") / "tiny")


def flags_of(scheme: str, args: Namespace) -> list[str]:
    command = own_command(Path("m"), scheme, args)
    return command[command.index("{port}") + 1 :]


def test_each_scheme_is_compared_with_none_and_then_with_its_peers() -> None:
    peers = {"int8": {"theirs": ["a"], "others": ["b"]}}
    assert pairs(["none", "int8", "int4"], peers) == [
        ("infer int8", "infer none"),
        ("infer int4", "infer none"),
        ("infer int8", "theirs"),
        ("infer int8", "others"),
    ]
    assert pairs(["int8"], peers) == [("infer int8", "theirs"), ("infer int8", "others")]


def test_a_ratio_is_of_medians_and_above_one_in_favour_of_the_first() -> None:
    turns = {
        "infer int8": [{"W, tokens/s": rate, "idle memory, GB": 1.0} for rate in (10.0, 300.0, 200.0)],
        "theirs": [{"W, tokens/s": 100.0, "idle memory, GB": 2.0}] * 3,
    }
    found = compare(Race(turns=turns, texts={}), [("infer int8", "theirs")])
    assert found == {"infer int8 / theirs": {"W, tokens/s": 2.0, "idle memory, GB": 2.0}}


def test_only_quantized_sides_get_the_flags_that_quantize() -> None:
    args = read_arguments(["--model", "m", "--serve", "--max-batch-size", "4"])
    assert flags_of("none", args) == ["--max-batch-size", "4"]
    assert flags_of("int8", args) == ["--quantization", "int8", "--max-batch-size", "4"]
    args = read_arguments(["--model", "m", "--scheme-flags", "--weights {scheme} --x"])
    assert flags_of("int4", args) == ["--weights", "int4", "--x"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model"),
        (["--model", "m", "--schemes", "none", *PEER], "`--peer int8` is none of the schemes none"),
        (["--model", "m", "--peer", "int8", "theirs", "serve"], "`{port}` in its command"),
        (["--model", "m", *PEER, *PEER], "a name of its own"),
        (["--model", "m", "--peer", "int8", "infer int4", "{port}"], "a name of its own"),
        (["--model", "m", "--rounds", "0"], "must be positive"),
    ],
)
def test_a_comparison_that_cannot_be_run_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_arguments(flags)
    assert message in capsys.readouterr().err


def test_a_comparison_saves_every_round_of_every_side(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stub = f"{sys.executable} -m infer_server --model {checkpoint} --port {{port}}"
    flags = [
        "--schemes",
        "none",
        "fcfs",
        "--scheme-flags",
        "--scheduler-policy {scheme}",
        "--peer",
        "fcfs",
        "stub",
        stub,
    ]
    quantized_peers.main(
        [
            "--model",
            str(checkpoint),
            *flags,
            "--rounds",
            "1",
            "--scale",
            "0.05",
            "--device",
            "cpu",
            "--out",
            str(tmp_path),
        ]
    )
    saved = json.loads((tmp_path / "quantized-peers-tiny.json").read_text())
    assert {side: len(turns) for side, turns in saved["turns"].items()} == {"infer none": 1, "infer fcfs": 1, "stub": 1}
    assert "--scheduler-policy fcfs" in saved["commands"]["infer fcfs"]
    assert "--scheduler-policy" not in saved["commands"]["infer none"]
    assert list(saved["ratios"]) == ["infer fcfs / infer none", "infer fcfs / stub"]
    assert saved["ratios"]["infer fcfs / stub"]["idle memory, GB"] == pytest.approx(1.0, rel=0.2)
    assert saved["agreements"]["infer fcfs / stub"]["num_same_answers"] == 16
    assert "| times better | infer fcfs / infer none | infer fcfs / stub |" in capsys.readouterr().out
