"""Everything that no command of a publication writes, with reasons: results to come, pictures, and typed numbers."""

STALE: dict[str, str] = {}
"""Results that are to be measured again, by name, with the reason: their files may be of a changed tree or another
command, or be missing, and then the page keeps what it says. An entry that is not needed is a problem, too."""

PICTURES_BY_HAND = {
    "nanogpt-loss.png": "`examples/nanogpt/train.py` draws it; its text is not in this repository",
    **dict.fromkeys(
        (
            "playground-batch-dark.png",
            "playground-batch-light.png",
            "playground-chat.png",
            "playground-completion-dark.png",
            "playground-phone.png",
            "playground-tools.png",
        ),
        "`nox -s browser` takes it, in a real Chromium",
    ),
}
"""Pictures in `docs/images` that show no result."""

_AMX = "a Xeon with AMX, and peers in environments of their own, at the commit that it names; no file was kept"
BY_HAND = "measured by hand, on the processor and at the commit that it names"
_BY_HAND_HERE = "measured by hand, on the processor that it names, at the commit that wrote its lines (`git blame`)"
_LIMIT = "a limit, a goal or a bound, not a measurement"
_ROUGH = "an order of magnitude, for operators"
_REASONS: dict[str, tuple[tuple[str, str], ...]] = {
    _AMX: (("docs/cpu.md", "## On which CPUs the comparisons hold"),),
    BY_HAND: (
        ("docs/benchmarks.md", "## The host's time of a step"),
        ("docs/cpu.md", "## How it works"),
        ("docs/cpu.md", "## Where a step's time goes"),
        ("docs/gpu.md", "### An H200"),
        ("docs/gpu.md", "### An H100"),
        ("docs/platforms.md", "## A busy machine"),
    ),
    _BY_HAND_HERE: (
        ("docs/benchmarks.md", "## Kernels on a CPU"),
        ("docs/cpu.md", "### Without AVX512"),
        ("docs/cpu.md", "### With AMX"),
        ("docs/cpu.md", "## How to measure it"),
        ("docs/cpu.md", "## What plain PyTorch gives"),
        ("docs/gguf.md", "## Measured"),
        ("docs/kernels.md", "## C++ kernels for CPUs"),
        ("docs/models.md", "#### What their turns and steps take"),
        ("docs/quantization.md", "## Measured"),
        ("docs/speculation.md", "## What it gains"),
    ),
    "a real model's text, and llama.cpp, are not in this repository": (("docs/quantization.md", "### A real model"),),
    "`examples/nanogpt/train.py` on a text that is not in this repository": (("docs/nanogpt.md", "## Training"),),
    "measured by a test, which prints it": (("docs/coverage.md", "## The gaps"),),
    "computed from the compiled kernels, without a GPU": (
        ("docs/kernels.md", "## Prefill attention's tiles"),
        ("docs/kernels.md", "## States"),
        ("docs/kernel-report.md", "## Main loops"),
    ),
    "simulated, at the commit that it names": (
        ("docs/scaling.md", "# Scaling, on paper"),
        ("docs/scaling.md", "## How much busier a replica may be"),
        ("docs/configuration.md", "### The budget of a GPU"),
    ),
    _LIMIT: (
        ("docs/benchmarks.md", "## Engine overheads"),
        ("docs/benchmarks.md", "## Streaming"),
        ("docs/gpu.md", "## Goals"),
        ("docs/from-vllm.md", "## Metrics"),
        ("docs/playground.md", "## Batch"),
        ("docs/structured-output.md", "## GBNF"),
        ("docs/structured-output.md", "## Hostile grammars"),
    ),
    _ROUGH: (
        ("docs/doctor.md", "## What it checks"),
        ("docs/operations.md", "## Metrics"),
        ("docs/operations.md", "### Requests"),
    ),
}

TYPED = {section: reason for reason, sections in _REASONS.items() for section in sections}
"""Sections, by page and heading, that quote numbers which people have typed, and why no result has them."""
