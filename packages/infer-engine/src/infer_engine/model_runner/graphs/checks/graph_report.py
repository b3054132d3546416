"""The report of capturing steps, and how it may fail."""

from dataclasses import dataclass

from infer_engine.model_runner.graphs.graph_capture import GraphCapture


class DeviceLostError(ValueError):
    """A captured step did not end, or failed for good: the device cannot be used further by this process."""


def require_device(capture: GraphCapture, error: Exception) -> None:
    """Return if the device still works after the `error` of a capture or a replay.

    A fault of a kernel, or of the driver in a capture, may take the context with it: every later call fails, whatever
    it asks for, with a message that says nothing of captured steps.

    Raises:
        DeviceLostError: it does not.
    """
    try:
        capture.free_bytes()
    except RuntimeError:
        raise DeviceLostError(
            f"capturing steps has left the GPU unusable for this process ({error}); start with "
            "`use_cuda_graphs=False`, and report it"
        ) from error


class GraphRefusedError(Exception):
    """A captured step does not compute what its kernels do."""


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The report of capturing.

    Attributes:
        num_captured: shapes whose captured steps are used.
        num_exact: those of them that gave the same bits.
        refusal: why none is used; None if they are.
        has_choices: whether the choice of tokens is captured too.
    """

    num_captured: int
    num_exact: int
    refusal: str | None = None
    has_choices: bool = True

    def __str__(self) -> str:
        """Return one line for the log."""
        if self.refusal is not None:
            return f"CUDA graphs are not used: {self.refusal}"
        close = f", {self.num_captured - self.num_exact} to rounding" if self.num_captured > self.num_exact else ""
        alone = "" if self.has_choices else ", without the choice of tokens"
        return f"{self.num_captured} steps are captured as CUDA graphs{alone}: {self.num_exact} gave equal bits{close}"
