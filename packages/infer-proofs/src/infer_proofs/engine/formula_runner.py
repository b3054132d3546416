"""A runner without a model: tokens by formula, a memory for a cache, and a device that may lag behind the host."""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from infer_engine.protocol import TokenLogprob
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.scheduling import KVCacheManager, RowEdit, Schedule
from infer_engine.step_runner import ComputedPass, PromptLogprobs, SampledTokens, SamplerOutput, StepOutOfMemoryError


def next_token(token_ids: list[int], *, vocab_size: int = 997) -> int:
    """Return the token that `FormulaRunner` gives after `token_ids`: a function of all of them."""
    token = 1
    for token_id in token_ids:
        token = (token * 31 + token_id + 7) % vocab_size
    return token


def prompt_logprob(request: Request, position: int) -> TokenLogprob:
    """Return what `FormulaRunner` measures at `position`: of the token after it, by all tokens up to there."""
    best, token_id = next_token(request.token_ids[: position + 1]), request.token_ids[position + 1]
    listed = [(best + i, -float(i)) for i in range(request.submission.params.prompt_logprobs or 0)]
    return TokenLogprob(token_id=token_id, logprob=-float(best), rank=1 + position, top=listed)


class LaggingDevice:
    """Runs operations in their order, some time after they were queued.

    What was queued behind an operation that fails is dropped when the host sees the failure.
    """

    def __init__(self, lag: Random | None) -> None:
        """Run each operation at once, or let `lag` draw how many run whenever one is queued."""
        self._lag = lag
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._num_queued = 0
        self._failed: tuple[int, Exception] | None = None

    def queue(self, operation: Callable[[], None]) -> int:
        """Queue an operation, and return its number."""
        self._queue.append((self._num_queued, operation))
        self._num_queued += 1
        self._run(len(self._queue) if self._lag is None else self._lag.randrange(4))
        return self._num_queued - 1

    def wait(self, number: int) -> None:
        """Run until operation `number` has.

        Raises:
            Exception: it failed, or one before it did.
        """
        while self._queue and self._queue[0][0] <= number:
            self._run(1)
        if self._failed is not None and self._failed[0] <= number:
            error = self._failed[1]
            self.drain()
            raise error

    def drain(self) -> None:
        """Run whatever is queued, or drop it behind a failure, which is then forgotten."""
        self._run(len(self._queue))
        self._failed = None

    def _run(self, count: int) -> None:
        for _ in range(min(count, len(self._queue))):
            number, operation = self._queue.popleft()
            if self._failed is not None:
                continue
            try:
                operation()
            except Exception as error:  # noqa: BLE001 - whatever fails is raised where the host waits
                self._failed = number, error


@dataclass(slots=True)
class _Item:
    """A request as a pass computes it, as the device gets it; the host's request goes on to change."""

    request_id: str
    row: int
    start: int
    end: int
    first_stored: int
    token_ids: list[int]
    pending_row: int


@dataclass(slots=True)
class FormulaLogits:
    """The next token of each sampled row, as a number, once the device has computed it; a test may set others."""

    numbers: list[float] = field(default_factory=list)
    replaced: dict[int, float] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "FormulaLogits":
        """Return logits with replacements of their own."""
        del memo
        return FormulaLogits(self.numbers, dict(self.replaced))

    def __setitem__(self, row: int, number: float) -> None:
        """Replace a row."""
        self.replaced[row] = number

    def read(self) -> list[float]:
        """Return the numbers of all rows."""
        return [self.replaced.get(row, number) for row, number in enumerate(self.numbers)]


class FormulaRunner:
    """A runner with a formula for a model, and with a memory for a cache: it reads each token where it was written.

    Every slot of the block tables holds the token that was computed there last. What a scheduled token attends to must
    be what its request's slots hold, so that a block that was never written, was written by another request, or was
    released too early is noticed. The core contains every exception of its runner, so violations are listed
    instead of raised.

    Attributes:
        schedules: what each pass that was launched computes, as (request id, tokens).
        num_attempts: forward passes, those that ran out of memory included.
        violations: what was wrong with them.
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        *,
        windows: tuple[int | None, ...] = (None,),
        max_items: int | None = None,
        lag: Random | None = None,
        on_execute: Callable[[Collection[str]], object] = len,
    ) -> None:
        """Read and write through `kv_cache_manager`; `windows` are those of its groups of layers.

        Args:
            kv_cache_manager: gives the blocks.
            windows: windows of each group of layers.
            max_items: a pass of more requests runs out of memory.
            lag: draws how far the device runs behind the host; None: not at all.
            on_execute: called with the ids of the requests of a pass when the device computes it; may raise.
        """
        self._block_size = kv_cache_manager.block_size
        self._windows = windows
        self._max_items = max_items
        self._on_execute = on_execute
        self._device = LaggingDevice(lag)
        # In the device's memory:
        self._rows: dict[tuple[int, int], dict[int, int]] = {}
        self._written: dict[tuple[int, int], tuple[int, int]] = {}  # (group, slot) -> (position, token)
        self._latest_tokens: list[int] = []
        self.schedules: list[list[tuple[str, int]]] = []
        self.num_attempts = 0
        self.violations: list[str] = []

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute, in place of logits, the next token of each request that needs sampling, as a number.

        Raises:
            StepOutOfMemoryError: there are more than `max_items` requests.
        """
        self.num_attempts += 1
        if self._max_items is not None and len(schedule.items) > self._max_items:
            raise StepOutOfMemoryError("a step of too many requests")
        if schedule.preempted and schedule.admitted:
            self.violations.append(
                "a pass that preempted also admitted: the admitted request takes what its victim needs"
            )
        self.schedules.append([(request.request_id, count) for request, count in schedule.items])
        for request, count in schedule.items:
            if request.state is RequestState.DECODE and not _is_decode(request, count):
                self.violations.append(f"{request.request_id} decodes what is not its last token alone, to be stored")
        rows = {request.row for request, _ in schedule.items}
        if len(rows) < len(schedule.items) or -1 in rows:
            self.violations.append("two requests share a row, or one has none")
        # Drafts are further rows of a step of decodes.
        decodes = schedule.decodes
        all_rows: Sequence[tuple[StepRow, int]] = schedule.items if decodes is None else [(row, 1) for row in decodes]
        items = [
            _Item(
                request.request_id,
                request.row,
                start=request.num_computed_tokens,
                end=request.num_computed_tokens + count,
                first_stored=max(request.num_computed_tokens, request.num_reused_tokens),
                token_ids=list(request.token_ids),
                pending_row=request.pending_row,
            )
            for request, count in all_rows
        ]
        sampled = [i for i, (request, count) in enumerate(all_rows) if request.num_uncomputed_tokens == count]
        prompt_logprobs = {
            request.request_id: [prompt_logprob(request, position) for position in positions]
            for request, count in schedule.items
            if (positions := request.missing_prompt_logprobs(count))
        }
        logits = FormulaLogits()
        number = self._device.queue(partial(self._compute, items, list(schedule.table_edits), sampled, logits))

        def read_prompt_logprobs() -> PromptLogprobs:
            self._device.wait(number)
            return prompt_logprobs

        return ComputedPass(logits=lambda: logits, read_prompt_logprobs=read_prompt_logprobs)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        """Choose the numbers as tokens; one that is not finite is no token."""
        for request in rows:
            if request.row >= 0 and request.pending_row >= 0:
                self.violations.append(f"{request.request_id} is sampled before its tokens are known")
        chosen: list[SamplerOutput] = []
        number = self._device.queue(partial(self._choose, computed.logits(), len(rows), chosen))

        def wait() -> SamplerOutput:
            self._device.wait(number)
            (output,) = chosen
            return output

        return SampledTokens(wait)

    def probe(self) -> None:
        """Wait for the device, which then goes on."""
        self._device.drain()

    def _compute(self, items: list[_Item], edits: list[RowEdit], sampled: list[int], logits: FormulaLogits) -> None:
        for row, edit in edits:
            columns = self._rows.setdefault((edit.group, row), {})
            columns.update(enumerate(edit.block_ids, start=edit.column))
        self._on_execute([item.request_id for item in items])
        for item in items:
            if item.end > len(item.token_ids):
                item.token_ids.append(self._latest_tokens[item.pending_row])
            self._store(item)
        for item in items:
            self._read(item)
        logits.numbers += [float(next_token(items[index].token_ids)) for index in sampled]

    def _choose(self, logits: FormulaLogits, num_rows: int, chosen: list[SamplerOutput]) -> None:
        numbers = logits.read()
        assert len(numbers) == num_rows
        not_finite = frozenset(index for index, number in enumerate(numbers) if not math.isfinite(number))
        self._latest_tokens = [0 if index in not_finite else int(number) for index, number in enumerate(numbers)]
        chosen.append(SamplerOutput(token_ids=self._latest_tokens, not_finite=not_finite))

    def _store(self, item: _Item) -> None:
        for group in range(len(self._windows)):
            for position, slot in enumerate(self._slots(group, item, item.first_stored, item.end), item.first_stored):
                if slot < 0:
                    self.violations.append(f"{item.request_id} stores in group {group} where it has no block")
                self._written[group, slot] = (position, item.token_ids[position])

    def _read(self, item: _Item) -> None:
        for group, window in enumerate(self._windows):
            start = 0 if window is None else max(0, item.start - window + 1)
            read = [self._written.get((group, slot)) for slot in self._slots(group, item, start, item.end)]
            if read != list(enumerate(item.token_ids[start : item.end], start=start)):
                self.violations.append(f"{item.request_id} reads in group {group} what it did not write")

    def _slots(self, group: int, item: _Item, start: int, end: int) -> list[int]:
        """Return where tokens `start` to `end` are; a negative slot where there is no block."""
        columns, size = self._rows.get((group, item.row), {}), self._block_size
        return [columns.get(position // size, -1) * size + position % size for position in range(start, end)]


def _is_decode(request: Request, num_tokens: int) -> bool:
    """Return whether a request computes one token after its prompt, which is stored and sampled."""
    computed = request.num_computed_tokens
    return (
        num_tokens == 1
        and computed + 1 == request.num_tokens
        and computed >= request.num_prompt_tokens
        and computed >= request.num_reused_tokens
    )
