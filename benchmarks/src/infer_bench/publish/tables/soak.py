"""The table of the soak, and its picture, from its result."""

from pathlib import Path

from infer_bench.publish.declared import Json
from infer_bench.results import table
from infer_bench.soak.latency import Kill, Window
from infer_bench.soak.memory import MemorySeries
from infer_bench.soak.plot import plot_soak


def soak(result: Json) -> str:
    """Return what was found, wanted, and whether it holds."""
    words = {None: "", True: "yes", False: "**no**"}
    rows = [[each["what"], each["found"], each["wanted"], words[each["holds"]]] for each in result["findings"]]
    return table(["what", "found", "wanted", "holds"], rows)


def draw_soak(result: Json, path: Path) -> None:
    """Draw memory and P99s over the minutes."""
    plot_soak(
        [MemorySeries(**series) for series in result["memory"]],
        [Window(**window) for window in result["p99_by_minute"]],
        [Kill(**kill) for kill in result["kills"]],
        path,
        title=f"{result['minutes']:g} minutes of traffic over two replicas of the demo model",
        warm_up_s=60 * result["warmup_minutes"],
    )
