"""Every check of the project, each in an environment of its own; `nox -l` lists them."""

import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.16"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

PACKAGES = ("kernels", "models", "cache", "engine", "server")
ALL_PACKAGES = (*PACKAGES, "ray")
PYTEST = ("python", "-m", "pytest", "--durations=5")
IN_PARALLEL = ("--numprocesses=logical", "--maxprocesses=8", "--dist=worksteal")
# Of an engine's and a server's tests, which wait for other processes and for clocks, one more runs at a time.
WAITING_IN_PARALLEL = (f"--numprocesses={min(9, (os.cpu_count() or 1) + 1)}", "--dist=worksteal")
# One thread of computation for each worker; where a test takes more, those that wait leave their processor to others.
# Compiled modules are kept, as tests start many processes that import torch.
TEST_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": ""}
KERNEL_TESTS = "packages/infer-kernels/tests"  # of Triton's kernels where they are interpreted, else of the other paths
LEFT_OUT = ("-m", "full and not exhaustive")
OLDEST = ("torch==2.11.*", "triton==3.6.*", "numpy<2.4")  # triton 3.6's interpreter breaks with later versions of numpy
ORACLES = "tests/oracles"


def sync(session: nox.Session, *selection: str) -> None:
    """Install exactly what `selection` of the lock file says into the session's own environment."""
    session.run_install(
        "uv",
        "sync",
        "--frozen",
        "--no-default-groups",
        *selection,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        external=True,
    )


def sync_package(session: nox.Session, package: str) -> None:
    """Install one package with its declared dependencies and its `test` group; nothing else is there to import."""
    sync(session, "--package", f"infer-{package}", "--group", "test")


def run_tests(
    session: nox.Session,
    *selection: str,
    env: dict[str, str] | None = None,
    parallel: tuple[str, ...] = IN_PARALLEL,
) -> None:
    """Run tests in parallel."""
    session.run(*PYTEST, *parallel, *selection, *session.posargs, env=TEST_ENV | (env or {}))


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in (*PACKAGES, "cross")])
def tests(session: nox.Session, package: str) -> None:
    """Each package alone with only its declared dependencies, then the facts across packages."""
    if package == "cross":
        sync(session, "--group", "test")
        run_tests(session, "-m", "not full", "tests", ORACLES, parallel=WAITING_IN_PARALLEL)
        return
    sync_package(session, package)
    if package == "kernels":  # Triton interprets all kernels of a process or none
        run_tests(session, "-m", "not full", KERNEL_TESTS, env={"TRITON_INTERPRET": "1"})
    parallel = WAITING_IN_PARALLEL if package in ("engine", "server") else IN_PARALLEL
    run_tests(session, "-m", "not full", f"packages/infer-{package}/tests", parallel=parallel)


@nox.session
def simulated_gpu(session: nox.Session) -> None:
    """Engine and doctor on a made-up GPU; fails if a line that only runs on a GPU has not run. In one process."""
    sync(session, "--group", "test")
    plugin = ("-p", "tests.simulated_gpu.cuda_lines")
    session.run(*PYTEST, *plugin, "tests/simulated_gpu", *session.posargs, env=TEST_ENV | {"TRITON_INTERPRET": "1"})


@nox.session
def oracles(session: nox.Session) -> None:
    """All cases of `tests/oracles`: published templates, vocabularies, converters, configurations, SDKs, schemas."""
    sync(session, "--group", "test")
    run_tests(session, "--timeout=3600", ORACLES)


@nox.session
def tests_full(session: nox.Session) -> None:
    """What `tests` leaves out: every triple of values of a grid, and long runs; but for interpreted kernels."""
    sync(session, "--group", "test", "--group", "server-test", "--group", "bench", "--group", "model")
    run_tests(session, *LEFT_OUT, "benchmarks/tests", "tests", "packages")


@nox.session
def tests_interpreted(session: nox.Session) -> None:
    """What `tests` leaves out of Triton's kernels, interpreted: run it before a change of one lands."""
    sync_package(session, "kernels")
    run_tests(session, *LEFT_OUT, KERNEL_TESTS, env={"TRITON_INTERPRET": "1"})


@nox.session
def clients(session: nox.Session) -> None:
    """The server against the oldest supported release of the `openai` client."""
    sync_package(session, "server")
    session.install("openai==1.97.2")
    session.run(*PYTEST, "packages/infer-server/tests/application/test_openai_client.py", *session.posargs)


@nox.session
def real_clients(session: nox.Session) -> None:
    """Agents, SDKs and agent libraries from npm and PyPI in whole loops with tools; needs Node.js 20 for npm's."""
    sync(session, "--group", "test")
    session.install("langchain-openai", "langchain-anthropic", "pydantic-ai-slim[openai]", "instructor", "litellm")
    session.install("openai-agents")
    folder = Path(session.create_tmp()).resolve()
    if shutil.which("npm"):
        shutil.copyfile("tests/clients/node/package.json", folder / "package.json")
        with session.chdir(folder):
            session.run("npm", "install", "--no-audit", "--no-fund", external=True)
    env = TEST_ENV | {"INFER_NODE_CLIENTS": str(folder)}
    ignored = ("-W", "default")  # clients' own warnings
    session.run(*PYTEST, *ignored, "tests/clients", *session.posargs, env=env)


@nox.session
def browser(session: nox.Session) -> None:
    """The playground in a real headless Chromium (Debian's package `chromium`, or INFER_CHROMIUM=path)."""
    sync(session, "--group", "test", "--group", "browser")
    session.run(*PYTEST, "tests/browser", *session.posargs)


@nox.session
def tests_long(session: nox.Session) -> None:
    """All tests, whole grids of cases included, with a hundred times the examples for every property."""
    sync(session, "--group", "test", "--group", "server-test")
    profile = {"HYPOTHESIS_PROFILE": "long"}
    session.run(*PYTEST, "--timeout=3600", *session.posargs, env=profile)
    session.run(*PYTEST, "--timeout=3600", KERNEL_TESTS, env=profile | {"TRITON_INTERPRET": "1"})


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """The oldest supported torch and triton, under kernels and models."""
    test_tools = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test-tools")
    ours = (f"./packages/infer-{package}" for package in ("kernels", "models", "proofs"))
    session.install(*OLDEST, "transformers>=5.0", *ours, *test_tools)
    run_tests(session, KERNEL_TESTS, env={"TRITON_INTERPRET": "1"})
    for package in ("kernels", "models"):
        run_tests(session, f"packages/infer-{package}/tests")


@nox.session
def lowest_kernels(session: nox.Session) -> None:
    """Of `lowest`, what a change breaks first: one kernel of each op compiles for sm_80, and some of int8 for sm_90."""
    test_tools = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "test-tools")
    session.install(*OLDEST, "./packages/infer-kernels", "./packages/infer-proofs", *test_tools)
    chosen = ("-m", "not full", "-k", "sm_80 or (linear_quantized and sm_90 and (int8 or minimums))")
    session.run(*PYTEST, *chosen, "packages/infer-kernels/tests/compiled/test_ahead_of_time.py", env=TEST_ENV)


@nox.session
def ray(session: nox.Session) -> None:
    """The server on a Ray cluster: without Ray, and on real clusters of this machine, one at a time."""
    sync_package(session, "ray")
    session.run(*PYTEST, "-m", "not full", "packages/infer-ray/tests", *session.posargs, env=TEST_ENV)


@nox.session
def tests_bench(session: nox.Session) -> None:
    """The benchmarks: their numbers add up, and each runs once on the smallest part of its work."""
    sync_package(session, "bench")
    run_tests(session, "-m", "not full", "benchmarks/tests")


WITHOUT_FP16 = ("float32", "bfloat16")
"""Where only products or memory matter: fp16 has rows like those of bf16, and panels like those of fp32."""
ALL_DTYPES = (*WITHOUT_FP16, "float16")


def has_cpu_kernels(dtypes: tuple[str, ...] = ALL_DTYPES) -> tuple[str, ...]:
    """Return a command that compiles the kernels of some dtypes: in tests it would be within their limits of time."""
    return "python", "-c", f"from infer_kernels.cpu import library; assert all(map(library, {dtypes}))"


NOT_PYTORCH = ("-k", "not pytorch")  # the cases in which plain PyTorch computes, without the kernels
AMX_TESTS = [
    f"packages/infer-kernels/tests/{name}.py"
    for name in (
        "cpu/test_cpu_amx",
        "moe/test_packed_experts",
        "attention/test_attention",
        "attention/test_attention_bits",
        "attention/test_attention_sinks",
    )
]
INSTRUCTION_SET_TESTS = [
    f"packages/infer-kernels/tests/{name}.py"
    for name in (
        "attention/test_attention_bits",
        "attention/test_cpu_attention",
        "checks/test_op_cases",
        "cpu/test_prepack",
        "linear/test_cpu_quantized",
        "linear/test_outliers",
        "linear/test_small_scales",
        "moe/test_fused_moe",
        "moe/test_packed_experts",
        "moe/test_quantized_experts",
        "qkv/test_eight_bit_caches",
        "qkv/test_kv_codes",
        "states/test_captured_states",
        "states/test_convolutions",
        "states/test_gated_delta_rule",
        "states/test_state_gates",
        "states/test_state_ops",
        "cpu/test_cpu_amx",
    )
]
"""What differs by instruction set: each op's values in a few calls, bits, matrix instructions and codes of 8 bits."""
SANITIZED_TESTS = [*INSTRUCTION_SET_TESTS, "packages/infer-kernels/tests/cpu/test_captured_step.py"]
CPU_KERNEL_SOURCES = "packages/infer-kernels/src/infer_kernels/cpu/csrc"


EMULATED_AMX = "-DINFER_EMULATED_AMX=1"
AMX_INSTRUCTIONS = "-mamx-tile -mamx-bf16 -mamx-int8"
AVX_VNNI = f"-march=x86-64-v3 -include {Path('packages/infer-kernels/tests/avx_vnni.h').resolve()}"
COMPUTES_WITH = {
    "-march=x86-64-v4": "AVX512",
    "-march=x86-64-v3": "AVX2",
    AVX_VNNI: "AVX2 with VNNI",
    "-march=x86-64": "this CPU",
    EMULATED_AMX: "emulated AMX",
}
"""What libraries of bf16 say of themselves: where flags are refused others are tried, and would be tested instead."""


@nox.session
@nox.parametrize(
    "flags",
    [
        nox.param("-march=x86-64-v4", id="x86-64-v4"),
        nox.param("-march=x86-64-v3", id="x86-64-v3"),
        nox.param("-march=x86-64", id="x86-64"),
        nox.param(AVX_VNNI, id="avx-vnni"),
        nox.param("-mno-amx-bf16", id="without-amx"),
        nox.param(EMULATED_AMX, id="emulated-amx"),
        nox.param(AMX_INSTRUCTIONS, id="trapped-amx"),
    ],
)
def instruction_sets(session: nox.Session, flags: str) -> None:
    """The C++ kernels compiled for less than this CPU has, down to any x86-64, and for AMX, which is emulated.

    `avx-vnni` is what Intel's CPUs without AVX512 have since 2021: its one instruction is computed in C++.
    `emulated-amx` computes matrix instructions in C++. `trapped-amx` runs the machine code of a CPU with AMX, whose
    instructions trap here and are computed by a signal handler.
    """
    cpu = Path("/proc/cpuinfo").read_text()
    if flags in ("-march=x86-64-v4", "-march=x86-64-v3") and " avx512vl " not in cpu:
        session.skip("this CPU has no AVX512: `tests` runs what it has")
    if flags == AVX_VNNI and " avx2 " not in cpu:
        session.skip("this CPU has no AVX2")
    has_amx = " amx_bf16 " in cpu
    if flags == AMX_INSTRUCTIONS and has_amx:
        session.skip("this CPU has AMX: `tests` runs its instructions")
    if flags == "-mno-amx-bf16" and not has_amx:
        session.skip("this CPU has no AMX: `tests` runs without")
    sync_package(session, "kernels")
    dtypes = ALL_DTYPES if flags in ("-march=x86-64-v3", "-march=x86-64") else WITHOUT_FP16
    env = {"INFER_CPU_KERNELS_FLAGS": flags, "INFER_TESTED_DTYPES": " ".join(dtypes)}
    options: tuple[str, ...] = ()
    if flags == AMX_INSTRUCTIONS:
        traps = Path(session.create_tmp()).resolve() / "amx_traps.so"
        command = ("c++", "-std=c++17", "-O2", "-fPIC", "-shared", "-march=native", "-DELEMENT=bf16")
        sources = (f"-I{CPU_KERNEL_SOURCES}", "packages/infer-kernels/tests/amx_traps.cpp")
        session.run(*command, *sources, "-o", str(traps), external=True)
        env["LD_PRELOAD"] = str(traps)
        options = ("-p", "no:faulthandler")  # whose handler would take the place of ours
    session.run(*has_cpu_kernels(dtypes), env=env)  # without them the tests would be skipped
    if flags in COMPUTES_WITH:
        found = "from infer_kernels.cpu import library; found = library('bfloat16').instruction_set"
        session.run("python", "-c", f"{found}; assert found == '{COMPUTES_WITH[flags]}', found", env=env)
    run_tests(session, "-m", "not full", *NOT_PYTORCH, *options, *INSTRUCTION_SET_TESTS, env=env)


@nox.session
def compilers(session: nox.Session) -> None:
    """The C++ kernels by each compiler that is installed, and by that of `ziglang`: the same bits in all dtypes."""
    sync(session, "--package", "infer-kernels", "--group", "test", "--extra", "compiler")
    session.run(*has_cpu_kernels())  # without them the tests would be skipped
    session.run(*PYTEST, "packages/infer-kernels/tests/cpu/test_compilers.py", *session.posargs, env=TEST_ENV)


WITHOUT_CPU_KERNELS_TESTS = [
    f"packages/infer-{name}.py"
    for name in (
        "models/tests/test_parity",
        "engine/tests/core/test_modes",
        "engine/tests/doctor/test_doctor_kernels",
        "engine/tests/doctor/test_doctor_model",
        "engine/tests/engines/test_llm",
        "engine/tests/engines/test_model_traffic",
        "engine/tests/model_runner/test_batch_invariance",
        "engine/tests/model_runner/test_kv_cache_dtype",
    )
]


@nox.session
def without_cpu_kernels(session: nox.Session) -> None:
    """Models, an engine in all its modes, checks of kernels and models without a compiler: plain PyTorch computes."""
    sync_package(session, "engine")
    run_tests(session, "-m", "not full", *WITHOUT_CPU_KERNELS_TESTS, env={"INFER_CPU_KERNELS": "0"})


@nox.session
def sanitizers(session: nox.Session) -> None:
    """The C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer, those with emulated tiles too."""
    sync_package(session, "kernels")
    libraries = [
        str(session.run("c++", f"-print-file-name={name}", external=True, silent=True)).strip()
        for name in ("libasan.so", "libstdc++.so")  # the second for exceptions that PyTorch throws
    ]
    env = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}  # the interpreter's
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1 -g1"
    for tests, more_flags, dtypes in (
        (SANITIZED_TESTS, "", WITHOUT_FP16),
        (AMX_TESTS, EMULATED_AMX, ("bfloat16",)),
    ):
        env |= {"INFER_CPU_KERNELS_FLAGS": f"{flags} {more_flags}", "INFER_TESTED_DTYPES": " ".join(dtypes)}
        session.run(*has_cpu_kernels(dtypes), env=env)  # without them the tests would be skipped
        chosen = ("-m", "not full", "-k", "not pytorch and not imports")  # those of imports look at Python alone
        run_tests(session, *chosen, *tests, env=env)


ARM_CPUS = {"neoverse-v1": "+nobf16", "neoverse-n1": "", "cortex-a72": ""}
"""CPUs of the ARM family: with products of bytes of either sign, of signed ones alone, and with neither. And what takes
products of bf16 from a CPU, as they have bits of their own."""
NEEDED_FOR_ARM = ("mmdebstrap", "qemu-aarch64-static", "aarch64-linux-gnu-g++")


@nox.session
@nox.parametrize("cpu", [nox.param(name, id=name) for name in ARM_CPUS])
def emulated_arm(session: nox.Session, cpu: str) -> None:
    """On an emulated ARM CPU kernels have the bits of x86, and the default model its answers; or named tests run there.

    It needs root and Debian's packages `mmdebstrap`, `qemu-user-static` and `g++-aarch64-linux-gnu`.
    """
    if missing := [name for name in NEEDED_FOR_ARM if shutil.which(name) is None]:
        session.skip(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        session.skip("only root may mount what the emulation needs")
    emulate = ("scripts/emulated_arm/run.sh", cpu, "python3.11", "-m")
    if session.posargs:
        session.run(*emulate, "pytest", "-q", "--timeout=3000", *session.posargs, external=True)
        return
    sync(session, "--group", "model", "--group", "proofs")
    for module, flags in (
        ("infer_proofs.kernels.kernel_bits", f"-mcpu={cpu}{ARM_CPUS[cpu]}"),
        ("scripts.emulated_arm.greedy_answers", ""),
    ):
        x86, arm = ({"INFER_CPU_KERNELS_FLAGS": each} for each in ("-march=x86-64-v3", flags))
        # Warnings go elsewhere: they would be in the middle of a line.
        here = session.run("python", "-m", module, env=x86, silent=True, stderr=None)
        there = session.run(*emulate, module, env=arm, external=True, silent=True, stderr=None)
        expected, found = (
            re.findall(r"^(?:[0-9a-f]{16} |answer ).*", str(text), re.MULTILINE) for text in (here, there)
        )
        different = [f"{line}\n{other}" for line, other in zip(expected, found, strict=True) if line != other]
        if different or not expected:
            session.error(f"{len(different)} of {len(expected)} lines differ:\n" + "\n".join(different[:20]))
        session.log(f"all {len(expected)} lines of {module} are those of x86")


BENCH = (
    "kernels-cpu --quick",
    "engine --quick",
    "cpu-steps --quick --least-share 0.1",
    "streaming --quick",
    "serving --workload mixed --quick --no-progress",
    "concurrency --quick",
)


@nox.session
def bench(session: nox.Session) -> None:
    """A short run of the benchmarks, within three minutes on two cores; fails where one misses a limit."""
    sync(session, "--group", "bench")
    missed = []
    for command in BENCH:
        try:
            session.run("python", "-m", "infer_bench", *command.split())
        except nox.command.CommandFailed:  # the others run all the same
            missed.append(command)
    if missed:
        session.error(f"failed, or missed a limit: {', '.join(missed)}")


@nox.session
def publish(session: nox.Session) -> None:
    """What README and docs quote, measured in about an hour on two quiet cores, and written into them."""
    sync(session, "--group", "bench", "--group", "ray")
    session.run("python", "-m", "infer_bench", "publish", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """An hour of mixed, hostile and disconnecting traffic over two replicas whose cores are killed."""
    sync(session, "--group", "bench")
    session.run("python", "-m", "infer_bench", "soak", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Write `docs/coverage.md` and its parts from their rows and from the markers of tests."""
    session.run("python", "-m", "scripts.coverage_pages")


@nox.session
def kernel_report(session: nox.Session) -> None:
    """Registers, shared memory and spills of every kernel that ships, compiled for three architectures."""
    sync(session, "--group", "bench")
    session.run("python", "-m", "infer_bench", "kernel-report", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, formatting and the layers between packages."""
    sync(session, "--group", "lint", "--group", "ray")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types: everything at once, then the `conftest.py` of each folder of tests, as modules of one name."""
    sync(session, "--group", "dev", "--group", "ray")
    session.run("mypy", ".")
    for path in sorted(Path("packages").glob("*/tests/**/conftest.py")):
        session.run("mypy", str(path))


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation's site; a broken link or anchor fails. `nox -s docs -- serve` shows it while you write."""
    sync(session, "--only-group", "docs")
    command = session.posargs or ("build", "--strict")  # `--quiet` would hide warnings from it
    session.run("mkdocs", *command, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def alone(session: nox.Session) -> None:
    """The kernels as other projects take them: the built wheel with what torch brings, outside the workspace."""
    folder = Path(session.create_tmp()).resolve()
    session.run(
        "uv", "build", "--wheel", "--quiet", "--package", "infer-kernels", "--out-dir", str(folder), external=True
    )
    session.install("--reinstall-package", "infer-kernels", *sorted(str(wheel) for wheel in folder.glob("*.whl")))
    (snippet,) = re.findall(
        r"```python\n(.*?)```", Path("packages/infer-kernels/README.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    with session.chdir(folder):
        session.run("python", "-c", "import importlib.util, sys; sys.exit(bool(importlib.util.find_spec('numpy')))")
        session.run("python", "-c", snippet)
        if shutil.which("c++"):  # the sources are in the wheel
            session.run(*has_cpu_kernels())


@nox.session
def wheels(session: nox.Session) -> None:
    """Build users' wheels, install them outside the workspace, import each, check their bounds; no proofs are there."""
    built = Path(session.create_tmp()).resolve() / "wheels"
    for name in ALL_PACKAGES:
        session.run(
            "uv", "build", "--wheel", "--quiet", "--package", f"infer-{name}", "--out-dir", str(built), external=True
        )
    session.install("--reinstall", *sorted(str(wheel) for wheel in built.glob("*.whl")))
    with session.chdir(built):
        for name in ALL_PACKAGES:
            session.run("python", "-c", f"import infer_{name}; print(infer_{name}.__file__)")
        session.run("python", "-c", "import importlib.util; assert importlib.util.find_spec('infer_proofs') is None")
        session.run("infer-server", "--version")
        session.run("infer-ray", "--version")
    session.run("uv", "pip", "check", external=True)
