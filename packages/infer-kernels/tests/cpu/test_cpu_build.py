"""Compiling the C++ kernels: once, for this CPU, and never with a traceback where it cannot be done."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from infer_kernels.cpu.compilation import Build, BuildError, build, cache, cache_folder, compilers, find_compiler
from infer_proofs.kernels.cpu_kernels import has_cpu_kernels

USE = """
import logging, torch
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
from infer_kernels import linear, prepack, rms_norm
torch.set_num_threads(max(2, torch.get_num_threads()))
x, weight = torch.randn(70, 64), torch.randn(512, 64)  # so many rows meet a barrier
torch.testing.assert_close(linear(x, prepack(weight)), x @ weight.T, atol=1e-4, rtol=1e-4)
rms_norm(x, torch.ones(64), 1e-6)
print("computed")
"""


def has_compiler() -> bool:
    """Return whether this machine can compile."""
    try:
        find_compiler()
    except BuildError:
        return False
    return True


def libraries(folder: Path) -> list[Path]:
    """Return what a cache holds beside its lock, headers and the message of a compiler that failed."""
    return sorted(path for path in folder.iterdir() if path.suffix not in (".lock", ".failed", ".h"))


def run(**environment: str) -> str:
    """Compute in a process of its own; return what it prints and logs."""
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == "computed\n"
    return done.stderr


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for the compiler; every command that would have compiled."""
    commands: list[list[str]] = []

    def compile_nothing(command: list[str], folder: Path, environment: dict[str, str]) -> str:
        assert environment
        commands.append(list(command))
        (folder / "kernels.so").write_bytes(b"a library")
        return ""

    monkeypatch.setattr(cache, "_compile_with", compile_nothing)
    monkeypatch.setattr(compilers, "find_compiler", lambda: [sys.executable])
    return commands


def test_a_library_is_compiled_once_and_found_afterwards(compiled: list[list[str]], tmp_path: Path) -> None:
    first, second = build("float32", cache=tmp_path / "new"), build("float32", cache=tmp_path / "new")
    assert first == Build(path=second.path, compiler=sys.executable)
    assert second.compiler == ""
    assert len(compiled) == 1
    assert libraries(tmp_path / "new") == [first.path]


def test_the_header_of_encodings_lies_beside_the_library_that_was_compiled_with_it(
    compiled: list[list[str]], tmp_path: Path
) -> None:
    library = build("float32", cache=tmp_path).path
    (header,) = tmp_path.glob("*.h")
    assert library.name.startswith(header.stem)
    assert "enum class Encoding" in header.read_text()
    assert any(argument.startswith("-I") for argument in compiled[0])


@pytest.mark.covers("configuration/compiled-once")
@pytest.mark.parametrize("change", ["cpu", "compiler", "flags", "source", "dtype"])
def test_another_cpu_compiler_flag_source_or_dtype_gets_a_library_of_its_own(
    compiled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = build("float32", cache=tmp_path).path
    extra_flags = ["-DOTHER"] if change == "flags" else []
    if change == "cpu":  # to a compiler, `-march=native` means the same everywhere
        monkeypatch.setattr(compilers, "describe_cpu", lambda: "another")
    elif change == "compiler":
        monkeypatch.setattr(compilers, "find_compiler", lambda: [os.path.realpath("/bin/sh")])
    elif change == "source":
        folder = tmp_path / "sources"
        folder.mkdir()
        (folder / "kernel.cpp").write_text("")
        monkeypatch.setattr(compilers, "SOURCE_FOLDER", folder)
    dtype = "bfloat16" if change == "dtype" else "float32"
    assert build(dtype, cache=tmp_path, extra_flags=extra_flags).path != before
    first, second = compiled
    assert first != second  # so that no cache of a compiler takes one for the other


def test_of_builders_at_once_one_compiles_and_the_others_wait(compiled: list[list[str]], tmp_path: Path) -> None:
    made: list[Build] = []
    threads = [threading.Thread(target=lambda: made.append(build("float32", cache=tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.path for each in made}) == 1
    assert made[0].path.read_bytes() == b"a library"
    assert libraries(tmp_path) == [made[0].path]
    assert len(compiled) == 1


@pytest.mark.usefixtures("compiled")
def test_nobodys_home_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "cache_folder", nowhere)
    assert build("float32").is_temporary


@pytest.mark.covers("configuration/cache-not-writable")
@pytest.mark.usefixtures("compiled")
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    made = build("float32", cache=tmp_path / "file" / "cache")
    assert made.path.read_bytes() == b"a library"
    assert not made.path.is_relative_to(tmp_path)
    assert made.is_temporary


@pytest.mark.parametrize(
    ("machine", "first"), [("aarch64", "-mcpu=native"), ("arm64", "-mcpu=native"), ("x86_64", "-march=native")]
)
def test_flags_that_a_compiler_refuses_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, first: str
) -> None:
    tried: list[list[str]] = []

    def refuse(command: list[str], folder: Path, environment: dict[str, str]) -> str:
        assert environment
        tried.append(command)
        if {"-march=native", "-mcpu=native", "-mavx2"} & set(command):
            return "clang: error: the clang compiler does not support '-march=native'"
        (folder / "kernels.so").write_bytes(b"plain")
        return ""

    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(cache, "_compile_with", refuse)
    monkeypatch.setattr(compilers, "find_compiler", lambda: [sys.executable])
    assert build("float32", cache=tmp_path).path.read_bytes() == b"plain"
    assert first in tried[0]
    assert not any("native" in flag for flag in tried[-1])
    assert len({tuple(command) for command in tried}) == len(tried)


def test_an_assembler_that_does_not_know_the_latest_instructions_gets_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GCC 11 over the binutils of CentOS 7: ggml-org/llama.cpp issue 11787, ollama issue 8942."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu sse2 fma avx f16c avx2 avx512f avx512_vnni\n")
    monkeypatch.setattr(compilers, "CPUINFO", cpuinfo)
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\ncase $* in *-march=native*) echo 'x.s:7: Error: no such instruction: vpdpbusd'; exit 1;; esac\n"
        'for last; do :; done; echo "$*" > "$last"\n'
    )
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CXX", str(compiler))
    assert "-mavx2 -mfma -mf16c" in build("float32", cache=tmp_path / "cache").path.read_text()
    cpuinfo.write_text("flags\t\t: fpu sse2 avx\n")  # an older CPU gets none of them
    assert "-mavx2" not in build("float32", cache=tmp_path / "cache").path.read_text()


def test_a_mac_is_known_by_what_sysctl_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysctl = tmp_path / "sysctl"
    monkeypatch.setattr(compilers, "CPUINFO", tmp_path / "nothing")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    keys = []
    for name in ("Apple M1", "Apple M4 Pro"):
        sysctl.write_text(f'#!/bin/sh\necho "$2: {name}"\n')
        sysctl.chmod(stat.S_IRWXU)
        assert compilers.describe_cpu() == f"machdep.cpu.brand_string: {name}\n"
        keys.append(compilers.key_of(["/bin/sh"], []))
    assert len(set(keys)) == 2


def test_cores_of_an_arm_cpu_are_known_by_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    core = "processor\t: {}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"
    cpuinfo.write_text(core.format(0, "0xd05") + core.format(1, "0xd0b") + core.format(2, "0xd0b"))
    monkeypatch.setattr(compilers, "CPUINFO", cpuinfo)
    assert compilers.describe_cpu().splitlines() == [
        "Features: fp asimd",
        "CPU implementer: 0x41",
        "CPU part: 0xd05",
        "CPU part: 0xd0b",
    ]


def test_a_compiler_that_fails_is_named_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-compiler"
    compiler.write_text("#!/bin/sh\necho 'kernel.cpp:1: error: no luck today'\nexit 1\n")
    compiler.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match=r"broken-compiler` failed: kernel.cpp:1: error: no luck today"):
        build("float32", cache=tmp_path / "cache")
    assert libraries(tmp_path / "cache") == []


@pytest.mark.covers("configuration/cache-dir-and-compiler")
def test_the_compiler_is_that_of_cxx_or_the_first_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # `ziglang` may be installed
    for name in ("g++", "mine"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(stat.S_IRWXU)
    path = {"PATH": str(tmp_path)}
    assert find_compiler(path) == [str(tmp_path / "g++")]
    assert find_compiler(path | {"CXX": "mine -m64"}) == [str(tmp_path / "mine"), "-m64"]
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "g++").symlink_to(tmp_path / "g++")
    spaced = str(tmp_path / "a folder" / "g++")
    assert find_compiler(path | {"CXX": spaced}) == find_compiler(path | {"CXX": f"'{spaced}'"}) == [spaced]
    with pytest.raises(BuildError, match=r"`theirs` of \$CXX is not installed"):
        find_compiler(path | {"CXX": "theirs"})
    with pytest.raises(BuildError, match=r"no C\+\+ compiler"):
        find_compiler({"PATH": ""})


@pytest.mark.covers("configuration/ziglang-compiles")
def test_without_another_compiler_that_of_ziglang_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ziglang"
    package.mkdir()
    for name in ("__init__.py", "zig"):
        (package / name).write_text("")
        (package / name).chmod(stat.S_IRWXU)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_compiler({"PATH": ""}) == [str(package / "zig"), "c++"]
    (tmp_path / "clang++").symlink_to(package / "zig")
    assert find_compiler({"PATH": str(tmp_path)}) == [str(tmp_path / "clang++")]
    with pytest.raises(BuildError, match=r"`g\+\+` of \$CXX is not installed"):
        find_compiler({"PATH": "", "CXX": "g++"})


@pytest.mark.covers("configuration/cache-dir-and-compiler")
def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_folder({"INFER_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/infer")
    assert cache_folder({}) == Path.home() / ".cache" / "infer"


@pytest.mark.covers("configuration/no-compiler")
def test_a_machine_without_a_compiler_computes_and_says_what_it_misses() -> None:
    log = run(PATH="", CXX="")
    assert log.count("\n") == 1
    assert log.startswith(
        "WARNING No CPU kernels for float32, plain PyTorch computes, several times slower: no C++ compiler"
    )
    assert log.endswith("install g++ or clang++, or `pip install ziglang`\n")


@pytest.mark.covers("configuration/cpu-kernels-off")
def test_kernels_can_be_switched_off() -> None:
    assert run(INFER_CPU_KERNELS="0") == "INFO CPU kernels are off (INFER_CPU_KERNELS); plain PyTorch computes\n"


def test_tests_are_skipped_without_a_compiler_and_not_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_proofs.kernels.cpu_kernels.library", lambda: None)
    monkeypatch.setattr("infer_proofs.kernels.cpu_kernels.is_switched_off", lambda: False)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    assert not has_cpu_kernels()
    monkeypatch.setenv("CXX", sys.executable)
    with pytest.raises(RuntimeError, match="did not compile"):
        has_cpu_kernels()


@pytest.mark.covers("configuration/compiled-once")
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler is installed")
def test_a_first_start_compiles_and_a_second_does_not(tmp_path: Path) -> None:
    compiled = "INFO CPU kernels for "
    environment = {"INFER_CACHE_DIR": str(tmp_path), "INFER_CPU_KERNELS_FLAGS": "-O0"}  # compiles in half the time
    first, second = run(**environment), run(**environment)
    assert first.startswith(compiled)
    assert first.count("\n") == 1
    assert second == ""
    (made,) = libraries(tmp_path)
    whole = made.read_bytes()
    made.unlink()  # its pages may be mapped
    made.write_bytes(whole[: len(whole) // 2])  # which would kill the process that maps it
    assert run(**environment).startswith(compiled)
    assert run(**environment) == ""
