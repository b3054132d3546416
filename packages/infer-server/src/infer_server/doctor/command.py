"""The work of `infer-server doctor`: examines, prints, writes, and returns the exit code."""

from pathlib import Path

from infer_engine.protocol.doctor import DoctorRequest
from infer_server.command import ReportUnwritableError, print_if_possible
from infer_server.doctor.parts import examine
from infer_server.doctor.report import HEADER, PartResult, as_json, closing, rows, unfinished

EXIT_FAILED = 1
EXIT_UNFINISHED = 3


def run_doctor(request: DoctorRequest, *, timeout_s: float | None, print_json: bool, out: Path | None) -> int:
    """Examine what `request` says, and print; write the report to `out` too if it is given. Return the exit code.

    It is 1 if something failed, else 3 if there was too little time for a part, else 0.

    Raises:
        ReportUnwritableError: `out` cannot be written.
    """
    _write(out, "")  # before the user has waited

    def show(part: PartResult) -> None:
        if not print_json:
            print_if_possible(rows(part))

    if not print_json:
        print_if_possible(HEADER)
    report = examine(request, timeout_s=timeout_s, on_part=show)
    text = as_json(report)
    print_if_possible(text if print_json else f"\n{closing(report)}")
    _write(out, f"{text}\n")
    if report.verdict == "failed":
        return EXIT_FAILED
    return EXIT_UNFINISHED if unfinished(report) else 0


def _write(out: Path | None, text: str) -> None:
    if out is None:
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportUnwritableError(f"`out` is {str(out)!r}, which cannot be written: {error.strerror}.") from error
