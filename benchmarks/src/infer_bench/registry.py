"""All benchmarks by name: lists them, and runs one."""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

BENCHMARKS = {
    "structured": ("offline.structured", "what structured output costs, beside free text"),
    "engine": ("offline.engine", "what the engine itself costs per step, without a model"),
    "host-step": (
        "offline.host_step",
        "the host's time of a step on a GPU's path, without the model",
    ),
    "concurrency": ("offline.concurrency", "16 requests together against one by one"),
    "speculation": ("offline.speculation", "the same requests with draft tokens and without"),
    "turns": ("offline.turns", "what later turns of a conversation compute, of a model with states"),
    "transformers": ("offline.transformers", "`LLM` and `transformers` in one process, turn by turn"),
    "serving": ("serving.workloads", "the workloads against any OpenAI-compatible server"),
    "over-http": ("serving.over_http", "what serving costs: one request over HTTP against `LLM.generate`"),
    "streaming": ("serving.streaming", "tokens per second that the server streams without a model"),
    "text-side": ("serving.text_side", "what looking for reasoning and tool calls costs per streamed token"),
    "routing": ("serving.routing", "replicas: what routing requests by their prefixes is worth"),
    "policies": ("serving.policies", "what each scheduling policy gives and costs"),
    "soak": ("soak.run", "an hour of mixed and hostile traffic with killed cores: memory, latency, balance"),
    "ablation": ("serving.ablation", "the serving ladder: what each optimization is worth"),
    "peers": (
        "serving.peers",
        "our server and others on the same checkpoint, round by round, quantized or not",
    ),
    "quantization-loss": ("quality.quantization_loss", "what quantized weights cost: held-out loss and greedy answers"),
    "steps": ("offline.steps", "where the time of a step goes, beside its floors; `--device cuda`: on a GPU"),
    "cpu-steps": ("offline.steps", "the same, as pages quote it of a CPU"),
    "write-checkpoint": ("checkpoints", "writes a checkpoint with random weights and a tokenizer"),
    "kernels-cpu": ("kernels.cpu", "the CPU kernels against the naive forms"),
    "kernels-gpu": ("kernels.gpu", "the kernels on a GPU, as shares of what it can do"),
    "kv-cache": ("kernels.kv_cache", "attention on a CPU over int8 keys and values, beside bf16"),
    "kernel-report": ("kernels.report", "registers, shared memory and spills of every kernel that ships"),
    "prefill-configs": ("kernels.tiles", "prefill attention's tile shapes: the compiler's facts, rates on a GPU"),
    "product-configs": (
        "kernels.tiles:main_of_products",
        "tile shapes of invariant products and of experts: the compiler's facts, rates on a GPU",
    ),
    "first-light": (
        "first_light",
        "all that a GPU can prove: the doctor, the tests that need one, and the benchmarks on it",
    ),
    "offline-bundle": ("offline_bundle", "what first light needs on a machine without network, in a folder"),
    "publish": ("publish.run", "runs what README and docs quote, and fills their tables and pictures"),
}
"""By name: the module, whose `main` takes the arguments, or another function of it, and what it measures."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark that the first argument names, with the rest; list all without one.

    Names may be written with underscores, as Python modules are.
    """
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = name.replace("_", "-")
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in BENCHMARKS:
        print(f"`{name}` is no benchmark.\n\n{usage()}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers it has started end, too
    sys.argv = [f"infer-bench {name}", *rest]  # what `--help` and the result's `command` show
    import_module("infer_engine")  # before torch: it says how torch's threads wait
    module, _, function = BENCHMARKS[name][0].partition(":")
    return int(getattr(import_module(f"infer_bench.{module}"), function or "main")(rest) or 0)


def usage() -> str:
    """Return the list of all benchmarks."""
    lines = [f"  {name:18} {line}" for name, (_, line) in BENCHMARKS.items()]
    return "\n".join(["usage: infer-bench NAME [options]    (each has --help)", "", *lines])
