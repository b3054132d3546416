"""`RecordingRunner`: a runner that also keeps the logits of every token."""

from collections.abc import Sequence

from torch import Tensor

from infer_engine.outputs import SampledTokens
from infer_engine.request import StepRow
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import ComputedPass, StepRunner


class RecordingRunner:
    """Computes with another `ModelRunner`, or with one that returns logits as it does. Implements `StepRunner`."""

    def __init__(self, inner: StepRunner, logits: dict[tuple[str, int], Tensor]) -> None:
        """Keep in `logits`, by (request id, tokens known), a copy of the row that the next token is chosen from."""
        self._inner = inner
        self._logits = logits

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Start to compute the items of the schedule."""
        computed = self._inner.forward(schedule)
        for request, row in zip(schedule.needs_sampling, computed.logits().clone(), strict=True):
            self._logits[request.request_id, request.num_tokens] = row
        return computed

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Start to choose the next token of each of `rows`."""
        return self._inner.sample(computed, rows)

    def probe(self) -> None:
        """Compute something small."""
        self._inner.probe()
