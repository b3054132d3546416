"""`Progress`: shows completions and tokens per second in a progress bar on standard error."""

import time
from collections.abc import Callable
from typing import Self, TextIO

from tqdm import tqdm

from infer_engine.protocol import EngineStats, StepOutput


class Progress:
    """Counts finished sequences and tokens, and shows them in a bar. A context manager, which closes the bar.

    Attributes:
        num_finished: sequences whose last output has come.
    """

    def __init__(
        self, *, total: int, is_shown: bool, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start a bar of `total` sequences on `file`, or on standard error if None."""
        self._bar = tqdm(total=total, unit="completion", disable=not is_shown, file=file)
        self._clock = clock
        self._started_s = clock()
        self._num_tokens = 0
        self.num_finished = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the bar; it stays on the screen."""
        self._bar.close()

    def counted(self, consume: Callable[[StepOutput], None]) -> Callable[[StepOutput], None]:
        """Return a function that calls `consume` and counts the output."""

        def count_and_consume(output: StepOutput) -> None:
            consume(output)
            self._num_tokens += len(output.token_ids)
            if output.finished:
                self.num_finished += 1
                self._bar.update()

        return count_and_consume

    def show(self, stats: EngineStats) -> None:
        """Set the counts beside the bar; they are drawn with its next update."""
        seconds = self._clock() - self._started_s
        rate = self._num_tokens / seconds if seconds > 0 else 0.0
        counts = f"{self._num_tokens} tokens, {rate:.1f} tokens/s, {stats.num_running} running"
        self._bar.set_postfix_str(counts, refresh=False)
