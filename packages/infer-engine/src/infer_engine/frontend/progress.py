"""`Progress`: completions done, and how fast tokens come, on standard error. Knows outputs; knows no engine."""

import time
from collections.abc import Callable
from typing import Self, TextIO

from tqdm import tqdm

from infer_engine.protocol import EngineStats, StepOutput


class Progress:
    """Counts what sequences get, and shows it on a bar. A context manager: the bar stays as it is at the end.

    Attributes:
        num_finished: sequences that have had their last output.
    """

    def __init__(
        self, *, total: int, is_shown: bool, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A bar of `total` sequences on `file`, standard error if None."""
        self._bar = tqdm(total=total, unit="completion", disable=not is_shown, file=file)
        self._clock = clock
        self._began_s = clock()
        self._num_tokens = 0
        self.num_finished = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def counted(self, take: Callable[[StepOutput], None]) -> Callable[[StepOutput], None]:
        """Return `take` with what passes through it counted."""

        def count_and_take(output: StepOutput) -> None:
            take(output)
            self._num_tokens += len(output.token_ids)
            if output.finished:
                self.num_finished += 1
                self._bar.update()

        return count_and_take

    def show(self, stats: EngineStats) -> None:
        """Put the counts beside the bar; they are drawn when the bar is."""
        seconds = self._clock() - self._began_s
        rate = self._num_tokens / seconds if seconds > 0 else 0.0
        counts = f"{self._num_tokens} tokens, {rate:.1f} tokens/s, {stats.num_running} running"
        self._bar.set_postfix_str(counts, refresh=False)
