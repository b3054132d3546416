"""The doctor's questions, and the findings of its parts: the messages between `infer-server doctor` and its processes.

A part is a program, `python -m infer_engine.doctor PART REQUEST FD`. It writes messages to the file FD, a line of JSON
each, as it finds them: what a part has found is known even if it crashes or hangs later. The last message is
`PartFinished`.
"""

from typing import Any, Literal

import msgspec

Verdict = Literal["skipped", "ok", "warning", "failed"]
"""From best to worst."""
UNFINISHED = "not finished"
"""What a finding is about that says that there was too little time: a warning, as it says nothing about the machine."""
PartName = Literal["environment", "model", "kernels", "engine"]


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task of a part.

    Attributes:
        model: as for `EngineConfig`; None: the default.
        device: as for `EngineConfig`.
        dtype: as for `EngineConfig`.
        quantization: as for `EngineConfig`.
        kv_cache_dtype: as for `EngineConfig`.
        seconds: after them the part begins nothing more.
        share_index: which of `num_shares` processes this is, among which the checks are divided.
        num_shares: processes that perform this part side by side.
    """

    model: str | None
    device: str
    dtype: str
    seconds: float
    share_index: int = 0
    num_shares: int = 1
    quantization: str = "auto"
    kv_cache_dtype: str = "auto"


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="finding"):
    """One thing that a part looked at.

    Attributes:
        what: the thing.
        verdict: whether it is as it should be; `skipped` was not looked at.
        found: what was found, in one line.
        fix: what to do about it; empty if there is nothing to do.
    """

    what: str
    verdict: Verdict
    found: str
    fix: str = ""


class Details(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="details"):
    """Facts for a bug report, by name."""

    facts: dict[str, Any]


class PartFinished(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="finished"
):
    """A part is done.

    Attributes:
        summary: what it found, in one line, if nothing is wrong.
    """

    summary: str


PartMessage = Finding | Details | PartFinished
