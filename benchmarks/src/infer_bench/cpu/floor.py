"""The least time that a model's products take on this CPU, from timing its dense layers alone.

    uv run infer-bench cpu-floor CHECKPOINT

loads the checkpoint as the engine does, says that it is ready, and answers every line of its standard input with one of
JSON: milliseconds of all dense layers one after another. It stays loaded, so that a comparison can ask it between its
rounds. The weights lie packed as the engine packs them, and are read once a pass as in a step; everything else that a
step does comes on top. Of a prompt no more rows reach the LM head than a batch has sequences.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from infer_models import CausalLM, ModelConfig, load_model
from infer_models.layers import LinearBase

BATCH_ROWS = 16
PROMPT_ROWS = 1024
READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Milliseconds of all dense layers, one after another.

    Attributes:
        row_ms: at one row: a decode step of one sequence.
        batch_ms: at `BATCH_ROWS` rows: a decode step of as many sequences.
        prompt_ms: at `PROMPT_ROWS` rows, the LM head at `BATCH_ROWS`: a prompt of that length.
    """

    row_ms: float
    batch_ms: float
    prompt_ms: float

    @classmethod
    def median(cls, floors: Sequence["Floor"]) -> "Floor":
        """Return the medians of several."""
        listed = [asdict(floor) for floor in floors]
        return cls(**{name: statistics.median(each[name] for each in listed) for name in listed[0]})

    def limit_tokens_per_s(self, *, num_prompt_tokens: int, num_steps: int, num_tokens: int) -> float:
        """Return the rate at which `BATCH_ROWS` requests are answered where a step is its products and nothing else.

        Args:
            num_prompt_tokens: of all prompts together.
            num_steps: decode steps, each of all requests.
            num_tokens: generated in all.
        """
        return num_tokens / (num_prompt_tokens * self.prompt_ms / PROMPT_ROWS + num_steps * self.batch_ms) * 1e3

    def stream_share(self, tokens_per_s: float) -> float:
        """Return the share of its time that one stream of that rate spends in products."""
        return self.row_ms * tokens_per_s / 1e3

    def prefill_share(self, prefill_ms: float, *, num_tokens: int) -> float:
        """Return the share that a prompt of `num_tokens` spends in products."""
        return self.prompt_ms * num_tokens / PROMPT_ROWS / prefill_ms


class LinearFloor:
    """Times the dense layers of a model."""

    def __init__(self, model: CausalLM) -> None:
        """Time `model`, whose weights are as they will be used."""
        self._head = model.lm_head
        self._layers = [each for each in model.modules() if isinstance(each, LinearBase) and each is not self._head]

    @torch.inference_mode()
    def measure_ms(self, num_rows: int, *, repeats: int) -> float:
        """Return the median milliseconds of `repeats` passes at `num_rows` rows, after one that does not count."""
        dtype = self._head.weight.dtype
        widths = {each.weight.shape[1] for each in (*self._layers, self._head)}
        inputs = {width: torch.randn(num_rows, width).to(dtype) for width in widths}
        last = inputs[self._head.weight.shape[1]][:BATCH_ROWS]
        seconds = []
        for _ in range(1 + repeats):
            started = time.perf_counter()
            for each in self._layers:
                each(inputs[each.weight.shape[1]])
            self._head(last)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:]) * 1e3

    def row_ms(self) -> float:
        """Measure a decode step of one sequence."""
        return self.measure_ms(1, repeats=15)

    def batch_ms(self) -> float:
        """Measure a decode step of `BATCH_ROWS` sequences."""
        return self.measure_ms(BATCH_ROWS, repeats=15)

    def prompt_ms(self) -> float:
        """Measure a prompt of `PROMPT_ROWS` tokens."""
        return self.measure_ms(PROMPT_ROWS, repeats=5)

    def measure(self) -> Floor:
        """Measure all three."""
        return Floor(row_ms=self.row_ms(), batch_ms=self.batch_ms(), prompt_ms=self.prompt_ms())


class FloorProcess:
    """A process that holds a checkpoint and measures when asked; it sleeps in between."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Ask `process`, which has just been started with pipes."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        if self._output.readline().strip() != READY:
            raise RuntimeError(
                f"`infer-bench cpu-floor` ended with exit code {process.wait()} before it was ready; "
                "its standard error says why"
            )

    def measure(self) -> Floor:
        """Let it measure."""
        self._input.write("measure\n")
        self._input.flush()
        return Floor(**json.loads(self._output.readline()))


@contextmanager
def floor_process(folder: Path, *, environment: Mapping[str, str]) -> Iterator[FloorProcess]:
    """Yield a process over the checkpoint in `folder`, with the variables that the engine's process has.

    Raises:
        RuntimeError: it could not load the checkpoint.
    """
    command = [sys.executable, "-m", "infer_bench", "cpu-floor", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - ours
        try:
            yield FloorProcess(process)
        finally:
            process.kill()


def load_packed(folder: Path, *, is_dummy: bool = False) -> CausalLM:
    """Return the checkpoint in `folder` as the engine multiplies by it, or random weights of its shape."""
    dtype = getattr(torch, ModelConfig.from_folder(folder).dtype)
    model = load_model(folder, device=torch.device("cpu"), dtype=dtype, load_format="dummy" if is_dummy else "auto")
    model.prepack()
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    """Load, then answer until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder")
    floor = LinearFloor(load_packed(parser.parse_args(arguments).checkpoint))
    print(READY, flush=True)
    for _ in sys.stdin:
        print(json.dumps(asdict(floor.measure())), flush=True)
