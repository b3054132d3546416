"""The picture of static and continuous batching: both modes do all the work, and one of them keeps its rows fuller."""

import json
import subprocess
import sys
from pathlib import Path

FIGURE = Path(__file__).resolve().parent.parent / "benchmarks" / "batch_figure.py"


def test_batch_figure_shows_continuous_batching_with_fuller_rows_and_earlier_first_tokens(tmp_path: Path) -> None:
    picture = tmp_path / "batching.png"
    command = [sys.executable, str(FIGURE), "--picture", str(picture), "--out", str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 150_000
    modes = json.loads((tmp_path / "batching.json").read_text())["modes"]
    static, continuous = modes["Static batching"], modes["Continuous batching"]
    assert continuous["ticks"] < static["ticks"]
    assert continuous["rows_computing"] > static["rows_computing"]
    assert continuous["median_ticks_to_first_token"] < static["median_ticks_to_first_token"] / 4
