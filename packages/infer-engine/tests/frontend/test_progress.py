"""The progress bar: sequences done, tokens and tokens per second."""

import io

import pytest

from infer_engine.frontend.progress import Progress
from infer_engine.protocol import EngineStats, FinishReason, StepOutput


def output(*, num_tokens: int, last: bool) -> StepOutput:
    return StepOutput(
        request_id="r",
        token_ids=[1] * num_tokens,
        finished=last,
        finish_reason=FinishReason.LENGTH if last else None,
        num_prompt_tokens=1,
        num_completion_tokens=num_tokens,
    )


@pytest.mark.covers("command-line-and-library/progress-bar")
def test_a_bar_counts_sequences_and_shows_tokens_per_second() -> None:
    drawn, times, taken = io.StringIO(), iter([10.0, 12.0]), list[StepOutput]()
    with Progress(total=2, is_shown=True, file=drawn, clock=lambda: next(times)) as progress:
        take = progress.counted(taken.append)
        take(output(num_tokens=2, last=False))
        take(output(num_tokens=1, last=True))
        progress.show(EngineStats(num_running=5))
    assert (len(taken), progress.num_finished) == (2, 1)
    assert "1/2" in drawn.getvalue()
    assert "3 tokens, 1.5 tokens/s, 5 running" in drawn.getvalue()
