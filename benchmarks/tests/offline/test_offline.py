"""The offline benchmarks: steps that add up, turns that alternate, equal tokens."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from infer_bench.agreement import JudgedAnswer, compare_texts, compare_tokens
from infer_bench.offline import concurrency, engine, speculation
from infer_bench.offline import transformers as comparison
from infer_bench.shapes import SHAPES
from infer_proofs.engine.models import save_servable
from infer_proofs.models.checkpoints import save_mtp


def test_a_step_without_a_model_is_split_into_its_parts() -> None:
    found = engine.per_step(4, 20, engine.GREEDY)
    assert found["running"] == 4
    assert 0 < found["schedule_ms"] + found["build_ms"] + found["choose_ms"] < found["total_ms"] * 1.5
    assert engine.text_cost() > 0


def test_concurrency_compares_the_same_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "llama-30m", SHAPES["llama-30m"] | {"num_hidden_layers": 1})
    flags = ["--shape", "llama-30m", "--requests", "3", "--repeats", "1", "--scale", "0.03"]
    concurrency.main([*flags, "--out", str(tmp_path)])
    saved = json.loads((tmp_path / "concurrency-llama-30m.json").read_text())
    assert saved["ratio"] == saved["together"][0] / saved["one_by_one"][0]
    assert "| ratio (3 is the ceiling" in capsys.readouterr().out


def test_drafts_of_a_models_own_layer_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path, max_position_embeddings=8192))
    flags = ["--quick", "--method", "mtp", "--workloads", "copied", "--model", str(tmp_path)]
    assert speculation.main(flags) == 0
    assert "| copied | " in capsys.readouterr().out


# The comparison


def test_sides_take_turns_and_who_is_first_alternates() -> None:
    log: list[str] = []

    def side(name: str) -> Callable[[list[list[int]]], list[list[int]]]:
        def answer(prompts: list[list[int]]) -> list[list[int]]:
            log.append(f"{name} {len(prompts)}")
            return [[1, 2] for _ in prompts]

        return answer

    sides = {"a": side("a"), "b": side("b")}
    how = {"at_a_time": 2, "rounds": 2}
    rates = comparison.alternate(sides, lambda _: [[5], [6], [7]], num_new=2, **how)
    assert log == ["b 2", "b 1", "a 2", "a 1", "a 2", "a 1", "b 2", "b 1", "b 2", "b 1", "a 2", "a 1"]  # a warm-up
    assert {name: len(found) for name, found in rates.items()} == {"a": 2, "b": 2}
    with pytest.raises(RuntimeError, match="`b` gave"):
        comparison.alternate(sides, lambda _: [[5], [6], [7]], num_new=3, **how)


@pytest.mark.parametrize(("margin", "num_decided", "num_undecided_different"), [(0.5, 3, 0), (0.05, 2, 1)])
def test_a_difference_counts_where_the_margin_decides(
    margin: float, num_decided: int, num_undecided_different: int
) -> None:
    theirs = JudgedAnswer(token_ids=[1, 2, 9, 9], margins=[1.0, 1.0, margin, 1.0])
    found = compare_tokens([[1, 2, 3, 4]], [theirs], tolerance=0.1)
    assert (found.num_tokens, found.num_same_answers) == (3, 0)  # after the first difference nothing is compared
    assert (found.num_decided, found.num_decided_same) == (num_decided, 2)
    assert found.num_undecided_different == num_undecided_different


def test_answers_of_unlike_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1 tokens"):
        compare_tokens([[1, 2]], [JudgedAnswer(token_ids=[1], margins=[1.0])], tolerance=0.1)


def test_texts_are_compared_up_to_the_first_difference() -> None:
    found = compare_texts(["same", "abcd"], ["same", "abXY"])
    assert (found.num_same_answers, found.num_characters, found.num_same_characters) == (1, 8, 6)


def test_ours_and_transformers_generate_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = SHAPES["llama-30m"] | {"num_hidden_layers": 2, "hidden_size": 128, "torch_dtype": "float32"}
    monkeypatch.setitem(SHAPES, "llama-30m", shape)
    comparison.main(["--shape", "llama-30m", "--scale", "0.02", "--rounds", "2", "--out", str(tmp_path)])
    [saved] = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert {part: list(rates) for part, rates in saved["tokens_per_s"].items()} == {
        "16 at once": ["infer", "transformers"],
        "4 one by one": ["infer", "transformers"],
    }
    assert all(len(rates) == 2 for part in saved["tokens_per_s"].values() for rates in part.values())
    assert saved["agreement"]["num_decided_same"] == saved["agreement"]["num_decided"] > 20
    assert "100.0% of these are the same" in capsys.readouterr().out.replace("\n", " ")
