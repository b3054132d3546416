"""Whether rows of plain `F.linear` keep their bits in every batch, by the libraries' settings. Knows no engine.

The measuring is `kernels/row_invariance.py`, in a process for each workspace: cuBLAS reads its variables once.
"""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpu.isolation import run_python
from gpu.parts import Finding, Place

SCRIPT = Path(__file__).resolve().parents[1] / "kernels" / "row_invariance.py"

WORKSPACES: dict[str, dict[str, str]] = {
    "default workspace": {},
    "small workspace": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"},
}


def measure_rows(place: Place, workspace: str, deadline_s: float) -> dict[str, Any]:
    """Return what the script prints with one of `WORKSPACES`, or its `error`."""
    flags = ["--device", place.device.type, *(["--tiny"] if place.is_rehearsal else [])]
    seconds = deadline_s - time.monotonic()
    if seconds <= 0:
        return {"left_out": "no time was left"}
    ended = run_python([str(SCRIPT), *flags], seconds=seconds, environment=WORKSPACES[workspace])
    if ended.status != 0:
        return {"error": ended.describe(), "stderr": ended.stderr}
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def row_findings(workspace: str, found: dict[str, Any]) -> list[Finding]:
    """Return a line for each setting: for which layers a row's bits are those of the largest batch."""
    about = partial("rows of F.linear, {}, {}".format, workspace)
    if "left_out" in found:
        return [Finding(what=about("all settings"), found=f"left out: {found['left_out']}")]
    if "error" in found:
        return [Finding(what=about("all settings"), found=found["error"], holds=False)]
    return [
        Finding(what=about(setting), found=describe_rows(layers)) for setting, layers in found["differing_rows"].items()
    ]


def describe_rows(layers: dict[str, list[int]]) -> str:
    """Say for which layers no number of rows differs, and for which how many do."""
    differing = [f"{layer} ({len(rows)} batches)" for layer, rows in layers.items() if rows]
    equal = f"equal for {len(layers) - len(differing)} of {len(layers)} layers"
    return f"{equal}; not for {', '.join(differing)}" if differing else equal
