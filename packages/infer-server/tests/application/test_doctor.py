"""`infer-server doctor` around made-up parts: whatever one of them does is a line, and the others run."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from infer_engine.protocol.doctor import DoctorRequest, Finding
from infer_server.cli import main
from infer_server.doctor import part_process
from infer_server.doctor.part_process import PartProcess, read_result
from infer_server.doctor.parts import CPU_TIMEOUT_S, GPU_TIMEOUT_S, MAX_PROCESSES, PARTS, join
from infer_server.doctor.redaction import MASK, Redactor
from infer_server.doctor.report import VERDICTS, worst

REQUEST = DoctorRequest(model=None, device="auto", dtype="auto", seconds=1.0)
NAMES = ["environment", "model", "kernels", "engine"]
HEAD = """
import json, os, sys
name, request, file = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
def tell(**message):
    os.write(file, json.dumps(message).encode() + b"\\n")
def find(what, verdict, found, fix=""):
    tell(kind="finding", what=what, verdict=verdict, found=found, fix=fix)
"""
DONE = "tell(kind='finished', summary=f'{name} is fine')"
FINE = f"find('x', 'ok', 'fine'); {DONE}"
START_A_CHILD = """
import subprocess, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
find('child', 'ok', str(child.pid))
"""

Parts = Callable[..., None]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """Return a function that takes the Python code of some parts by name; the others find that all is fine."""

    def parts(**codes: str) -> None:
        script = tmp_path / "part.py"
        cases = "\n".join(f"if name == {name!r}: exec({codes.get(name, FINE)!r})" for name in NAMES)
        script.write_text(HEAD + cases)
        monkeypatch.setattr(part_process, "PART_COMMAND", (sys.executable, str(script)))

    return parts


def json_report(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the report."""
    code = main(["doctor", "--json", *flags])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {part["name"]: part["verdict"] for part in report["parts"]}


def test_parts_that_are_fine_are_a_line_each_and_exit_code_0(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts()
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:5]] == [["part", "verdict"], *([name, "ok"] for name in NAMES)]
    assert lines[1].endswith("environment is fine")
    assert lines[-1] == "Everything works."


def test_a_warning_is_shown_with_its_fix_and_exit_code_0(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts(model="find('memory', 'warning', 'little.', 'buy some'); find('chat', 'skipped', 'none');" + FINE)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "memory: little. Fix: buy some\n" in text
    assert "chat: none\n" in text
    assert text.endswith("Everything works, 1 warning.\n")


def test_a_failure_is_exit_code_1_and_says_what_a_bug_report_needs(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(kernels="find('add_rms_norm', 'failed', 'differs');" + FINE)
    assert main(["doctor"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Not everything works: kernels failed, 0 warnings.")
    assert "--out report.json" in last


def test_checks_that_were_left_out_are_exit_code_3_unless_something_failed(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    late = "find('not finished', 'warning', '3 checks were left out', 'wait');" + FINE
    parts(kernels=late)
    assert main(["doctor"]) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Nothing failed, but kernels did not finish, 1 warning.")
    assert "`--timeout SECONDS`" in last
    parts(kernels=late, engine="find('tokens', 'failed', 'differ');" + FINE)
    assert main(["doctor"]) == 1
    assert "engine failed" in capsys.readouterr().out


@pytest.mark.covers("command-line-and-library/doctor-parts-that-break")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("os.abort()", "ended by SIGABRT"),
        ("raise RuntimeError('the GPU is lost')", "exit code 1: RuntimeError: the GPU is lost"),
        ("sys.exit(0)", "ended before it was done"),
        ("os.write(file, b'\\xff\\x00 garbage\\n' * 3);" + FINE, "wrote 3 lines that are no messages"),
        ("tell(kind='finding', what=1);" + FINE, "wrote 1 lines that are no messages"),
        ("os.write(file, b'[' * 2_000_000 + b'\\n');" + FINE, "wrote 1 lines that are no messages"),
        (FINE + "; sys.exit(3)", "exit code 3"),
    ],
)
def test_a_part_that_breaks_is_a_line_and_the_others_run(
    parts: Parts, capsys: pytest.CaptureFixture[str], code: str, cause: str
) -> None:
    parts(kernels="find('before', 'ok', 'kept'); " + code)
    status, report = json_report(capsys)
    assert status == 1
    assert verdicts(report) == {"environment": "ok", "model": "ok", "kernels": "failed", "engine": "ok"}
    findings = {each["what"]: each["found"] for each in report["parts"][2]["findings"]}
    assert findings["before"] == "kept"
    assert cause in findings["the part itself"]


@pytest.mark.covers("command-line-and-library/doctor-parts-that-break")
def test_a_part_that_hangs_is_killed_with_all_that_it_started(parts: Parts, tmp_path: Path) -> None:
    parts(engine=START_A_CHILD + "time.sleep(600)")
    process = PartProcess("engine", REQUEST, tmp_path)
    messages = tmp_path / "engine-0.jsonl"
    while not messages.read_bytes().endswith(b"\n"):  # pytest's timeout ends this
        time.sleep(0.01)
    result = process.result(time.monotonic() + 0.1)
    child, itself = result.findings
    assert (itself.what, itself.verdict) == ("not finished", "warning")
    assert "`--timeout`" in itself.fix
    assert "compiled kernels are kept" in itself.fix
    assert ended(int(child.found))


def test_what_a_part_leaves_running_is_killed(parts: Parts, tmp_path: Path) -> None:
    parts(engine=START_A_CHILD + FINE)
    result = PartProcess("engine", REQUEST, tmp_path).result(time.monotonic() + 60)
    assert result.summary == "engine is fine"
    assert ended(int(result.findings[0].found))


def test_temporary_files_of_a_part_that_breaks_are_removed(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts(model="import tempfile; tell(kind='details', facts={'made': tempfile.mkdtemp()}); os.abort()")
    _, report = json_report(capsys)
    made = Path(report["parts"][1]["details"]["made"])
    assert made.is_absolute()
    assert not made.exists()


def ended(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(timeout=30)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.mark.covers("command-line-and-library/doctor")
def test_a_part_without_enough_time_is_a_warning_and_exit_code_3_and_the_others_run(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(environment="find('torch', 'ok', 'kept'); import time; time.sleep(600)")
    status, report = json_report(capsys, "--timeout", "12")
    assert status == 3
    assert verdicts(report)["environment"] == "warning"
    assert [each["what"] for each in report["parts"][0]["findings"]] == ["torch", "not finished"]
    assert verdicts(report)["engine"] == "ok"
    assert report["seconds"] < 12


def test_a_part_is_told_what_to_examine_and_how_long(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts(engine="tell(kind='details', facts=request);" + FINE)
    _, report = json_report(capsys, "--model", "m", "--device", "cuda:1", "--dtype", "float16", "--timeout", "40")
    asked = report["parts"][3]["details"]
    assert {name: asked[name] for name in ("model", "device", "dtype")} == {
        "model": "m",
        "device": "cuda:1",
        "dtype": "float16",
    }
    assert 25 < asked["seconds"] < 40  # what earlier parts left is its own
    assert (report["model"], report["device"], report["dtype"]) == ("m", "cuda:1", "float16")


@pytest.mark.parametrize(("device", "most_s"), [("cpu", CPU_TIMEOUT_S), ("cuda:0", GPU_TIMEOUT_S)])
def test_a_gpu_has_time_to_compile_its_kernels(
    parts: Parts, capsys: pytest.CaptureFixture[str], device: str, most_s: float
) -> None:
    asked = "tell(kind='details', facts={'seconds': request['seconds']});"
    parts(environment=f"tell(kind='details', facts={{'device': {device!r}}});{asked}" + FINE, engine=asked + FINE)
    _, report = json_report(capsys)
    first, *_, last = [part["details"].get("seconds") for part in report["parts"]]
    assert 0.25 * GPU_TIMEOUT_S - 10 < first < 0.25 * GPU_TIMEOUT_S  # before it is known
    assert most_s - 15 < last < most_s


def test_kernels_are_checked_by_as_many_processes_as_the_environment_says(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    share = "index = request['share_index']; find(f'share {index} of {request[\"num_shares\"]}', 'ok', 'checked');"
    share += "find('all', 'skipped', 'the same');"
    crash = "os.abort() if index == 1 else None;"
    parts(environment="tell(kind='details', facts={'kernel_processes': 3});" + FINE, kernels=share + crash + DONE)
    status, report = json_report(capsys)
    assert status == 1
    found = [each["what"] for each in report["parts"][2]["findings"]]
    assert sorted(found) == ["all", "share 0 of 3", "share 1 of 3", "share 2 of 3", "the part itself"]


@pytest.mark.parametrize("count", [0, -1, "many", None, 10**9])
def test_an_unlikely_number_of_processes_is_none_or_the_most(
    parts: Parts, capsys: pytest.CaptureFixture[str], count: Any
) -> None:
    told = f"tell(kind='details', facts={{'kernel_processes': {count!r}}});"
    parts(environment=told + FINE, kernels="find(str(request['share_index']), 'ok', '');" + DONE)
    _, report = json_report(capsys)
    assert len(report["parts"][2]["findings"]) == (MAX_PROCESSES if count == 10**9 else 1)


@pytest.mark.covers("command-line-and-library/doctor")
def test_the_json_report_has_these_keys(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts(kernels="find('x', 'warning', 'y', 'z'); print('last words'); raise SystemExit(1)")
    _, report = json_report(capsys)
    assert list(report) == ["doctor", "verdict", "seconds", "model", "device", "dtype", "parts"]
    for part in report["parts"]:
        assert list(part) == ["name", "verdict", "seconds", "summary", "findings", "details", "log"]
        assert all(list(each) == ["kind", "what", "verdict", "found", "fix"] for each in part["findings"])
    assert report["parts"][2]["log"] == ["last words"]


def test_the_report_goes_to_a_file_beside_the_table(
    parts: Parts, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts()
    assert main(["doctor", "--out", str(tmp_path / "report.json")]) == 0
    assert "Everything works." in capsys.readouterr().out
    assert verdicts(json.loads((tmp_path / "report.json").read_text())) == dict.fromkeys(NAMES, "ok")


@pytest.mark.covers("command-line-and-library/doctor")
@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--device", "gpu"], "`device` is 'gpu'"),
        (["--dtype", "int3"], "--dtype"),
        (["--timeout", "0"], "`timeout` is 0.0"),
        (["--timeout", "nan"], "`timeout` is nan"),
        (["--model", " "], "`model` is ' '"),
        (["--port", "1"], "--port"),
        (["--out", "/no/such/folder/report.json"], "`out` is '/no/such/folder/report.json'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2_before_anything_runs(
    parts: Parts, capsys: pytest.CaptureFixture[str], flags: list[str], cause: str
) -> None:
    parts(environment="os.abort()")
    assert main(["doctor", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert cause in line


@pytest.mark.covers("command-line-and-library/doctor-secrets")
def test_secrets_are_nowhere_in_the_report(
    parts: Parts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFER_API_KEY", "first-key-1, second-key-2")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    everything = "text = ' '.join([os.environ['INFER_API_KEY'], os.environ['HF_TOKEN'], 'http://me:pass@host/',"
    everything += "os.environ['HOME'] + '/models']);"
    everything += (
        "find(text, 'failed', text, text); tell(kind='details', facts={text: [text]}); print(text); os.abort()"
    )
    parts(model=everything)
    main(["doctor", "--out", str(tmp_path / "report.json"), "--model", "hf_mnopqrstuvwxyz"])
    shown = capsys.readouterr().out + (tmp_path / "report.json").read_text()
    for secret in ("first-key-1", "second-key-2", "hf_abcdefghijkl", "hf_mnopqrstuvwxyz", "pass", "alice"):
        assert secret not in shown
    assert "~/models" in shown
    assert MASK in shown


def test_ordinary_words_are_left_alone() -> None:
    redactor = Redactor({"TOKENIZERS_PARALLELISM": "false", "SOME_KEY": ""}, home=Path("/root"))
    text = "false, /root/x, /rooted, tokens, sk-learn"
    assert redactor.clean({"a": [text, 1, None, True]}) == {
        "a": ["false, ~/x, /rooted, tokens, sk-learn", 1, None, True]
    }


def test_a_message_that_was_cut_off_is_left_out() -> None:
    result = read_result(b'{"kind":"finished","summary":"s"}\n{"kind":"fin', "", exit_code=0)
    assert (result.findings, result.summary) == ([], "s")


def test_the_worst_verdict_counts_and_a_part_of_skipped_findings_is_skipped() -> None:
    assert worst(VERDICTS) == "failed"
    assert worst(["skipped", "ok"]) == "ok"
    assert worst([]) == "ok"
    found = read_result(b'{"kind":"finished","summary":"s"}\n', "", exit_code=0)
    found.findings.append(Finding(what="GPU", verdict="skipped", found="none"))
    part = join("engine", [found], seconds=1.0, redactor=Redactor({}))
    assert (part.verdict, part.summary) == ("skipped", "GPU: none")


@pytest.mark.covers("command-line-and-library/doctor-parts-that-break")
def test_everything_ends_within_a_minute_on_a_cpu() -> None:
    assert CPU_TIMEOUT_S < 60
    assert [part.ends_at for part in PARTS] == sorted(part.ends_at for part in PARTS)
    assert PARTS[-1].ends_at == 1.0
    assert [part.name for part in PARTS] == NAMES
