"""What serving costs: both sides generate the same number of tokens, and the ratio is that of the rounds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infer_bench.serving import over_http
from infer_bench.serving.over_http import summary_of

ROUNDS = [
    {"direct_s": 2.0, "http_s": 2.2, "http_ttft_s": 0.3, "num_tokens": 100},
    {"direct_s": 1.0, "http_s": 1.5, "http_ttft_s": 0.2, "num_tokens": 100},
    {"direct_s": 4.0, "http_s": 4.0, "http_ttft_s": 0.9, "num_tokens": 100},
]


@pytest.mark.covers("workloads/over-http")
def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    summary = summary_of(ROUNDS)
    assert summary["ratio"] == {"median": pytest.approx(1.1), "min": 1.0, "max": 1.5}
    assert summary["medians"] == {"direct_s": 2.0, "http_s": 2.2, "http_ttft_s": 0.3, "num_tokens": 100}
    assert summary["extra_s_per_token"] == pytest.approx(0.002)


def _noting(found: list[str], name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        found.append(name)
        return ask(*arguments)

    return noted


@pytest.mark.covers("workloads/over-http")
def test_both_sides_are_asked_in_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found: list[str] = []
    for name in ("ask_server", "ask_llm"):
        monkeypatch.setattr(over_http, name, _noting(found, name, getattr(over_http, name)))
    over_http.main(
        ["--shape", "llama-30m", "--scale", "0.05", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)]
    )
    assert found == ["ask_server", "ask_llm", "ask_llm", "ask_server"]  # a warm-up, and one round
    assert (tmp_path / "over-http-llama-30m.json").exists()
    assert "`single` x0.05, llama-30m, 1 threads" in capsys.readouterr().out
