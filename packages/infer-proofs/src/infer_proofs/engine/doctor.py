"""Runs a part of the doctor in this process, for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from infer_engine.doctor.reporter import Reporter
from infer_engine.protocol.doctor import Details, DoctorRequest, Finding, PartFinished, PartMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The finding of a part.

    Attributes:
        findings: by what was looked at, the last one of each.
        details: facts by name.
        summaries: summaries of the part; one if it ran to its end.
    """

    findings: dict[str, Finding] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    summaries: list[str] = field(default_factory=list)

    def named(self, verdict: str) -> set[str]:
        """Return what got a verdict."""
        return {what for what, finding in self.findings.items() if finding.verdict == verdict}

    def take(self, line: bytes) -> None:
        """Take a message as a part writes it."""
        match msgspec.json.decode(line, type=PartMessage):
            case Finding() as finding:
                self.findings[finding.what] = finding
            case Details(facts=facts):
                self.details.update(facts)
            case PartFinished(summary=summary):
                self.summaries.append(summary)


def examined(
    part: Callable[[Reporter], None],
    *,
    model: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    seconds: float = 600.0,
    share_index: int = 0,
    num_shares: int = 1,
    kv_cache_dtype: str = "auto",
    quantization: str = "auto",
) -> Examined:
    """Run `part` for a request of the other arguments, and return what it found."""
    found, reporter = reporter_of(
        DoctorRequest(
            model=model,
            device=device,
            dtype=dtype,
            seconds=seconds,
            share_index=share_index,
            num_shares=num_shares,
            kv_cache_dtype=kv_cache_dtype,
            quantization=quantization,
        )
    )
    part(reporter)
    return found


def reporter_of(request: DoctorRequest) -> tuple[Examined, Reporter]:
    """Return a reporter for `request`, and what it takes down."""
    found = Examined()
    return found, Reporter(request, found.take)
