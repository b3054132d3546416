"""Stand-ins for tests of everything around the model: a runner whose tokens follow from the tokens so far."""

from infer_cache import BlockTables
from infer_engine.core import EngineCore
from infer_engine.messages import StepResult, Submit, TokenOutput
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request
from infer_engine.scheduler import ContinuousScheduler, Schedule, SchedulerLimits


def next_token(token_ids: list[int], *, vocab_size: int = 997) -> int:
    """Return the token that `FormulaRunner` gives after `token_ids`: a function of all of them."""
    token = len(token_ids)
    for token_id in token_ids:
        token = (token * 31 + token_id + 7) % vocab_size
    return token


def expected_tokens(prompt: list[int], num_tokens: int) -> list[int]:
    """Return what a request of `num_tokens` tokens must get, whatever its company."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


class FormulaRunner:
    """A runner with a formula for a model. It checks that every scheduled token has memory, and keeps the schedules."""

    def __init__(self, tables: BlockTables) -> None:
        """Check against the memory of `tables`."""
        self._tables = tables
        self.schedules: list[list[tuple[str, int]]] = []

    def execute(self, schedule: Schedule) -> list[int]:
        """Return the next token of each request whose last known token is computed in this step."""
        assert not (schedule.preempted and schedule.admitted), "what preemption frees is not enough for its victim"
        self.schedules.append([(request.request_id, count) for request, count in schedule.items])
        for request, count in schedule.items:
            num_blocks = len(self._tables.blocks(request.request_id))
            assert num_blocks * self._tables.block_size >= request.num_computed_tokens + count
        return [self._next(request) for request, count in schedule.items if request.num_uncomputed_tokens == count]

    def _next(self, request: Request) -> int:
        return next_token(request.token_ids)


class FormulaEngine:
    """A whole core around `FormulaRunner`, with everything within a test's reach."""

    def __init__(
        self,
        *,
        num_blocks: int,
        limits: SchedulerLimits,
        block_size: int = 1,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """A pool of `num_blocks` blocks, and a scheduler with `limits`."""
        self.tables = BlockTables(num_blocks, block_size)
        self.scheduler = ContinuousScheduler(self.tables, limits)
        self.runner = FormulaRunner(self.tables)
        self.core = EngineCore(self.runner, self.scheduler, self.tables, eos_token_ids=eos_token_ids)

    def submit(
        self, request_id: str, prompt: list[int], *, max_tokens: int, params: SamplingParams | None = None
    ) -> None:
        """Queue a request."""
        params = params or SamplingParams(temperature=0)
        self.core.handle(
            Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=max_tokens, seed=0, params=params)
        )

    def run(self, *, max_steps: int = 10_000) -> dict[str, list[TokenOutput]]:
        """Step until nothing is left to do; return each request's outputs.

        Raises:
            AssertionError: there is still work after `max_steps` steps.
        """
        outputs: dict[str, list[TokenOutput]] = {}
        for _ in range(max_steps):
            if not self.core.has_work:
                return outputs
            collect(self.core.step(), outputs)
        raise AssertionError(f"still work after {max_steps} steps")


def collect(result: StepResult, outputs: dict[str, list[TokenOutput]]) -> None:
    """Append a step's outputs to those of their requests."""
    for output in result.outputs:
        outputs.setdefault(output.request_id, []).append(output)


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    """Return the tokens of a request's outputs, joined."""
    return [token_id for output in outputs for token_id in output.token_ids]
