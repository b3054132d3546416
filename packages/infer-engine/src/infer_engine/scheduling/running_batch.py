"""`RunningBatch`: the running requests, their rows and their blocks."""

import logging
from bisect import insort
from collections.abc import Callable, Sequence

from infer_cache.leaks import describe_leaks
from infer_cache.paged_manager import PrefixHit
from infer_engine.request import Request, RequestState
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.schedule import Schedule
from infer_engine.scheduling.waiting_queue import Rank

logger = logging.getLogger(__name__)


class KVCacheTooSmallError(RuntimeError):
    """The only running request gets no block: the KV cache is smaller than one request of maximum length."""


class RunningBatch:
    """Requests that hold memory, in order of rank; the last one is preempted first."""

    def __init__(
        self, kv_cache_manager: KVCacheManager, *, max_batch_size: int, rank: Rank, requeue: Callable[[Request], None]
    ) -> None:
        """Run up to `max_batch_size` requests, with a row each; `requeue` takes a preempted request."""
        self._kv_cache_manager = kv_cache_manager
        self._rank = rank
        self._requeue = requeue
        self._requests: list[Request] = []
        self._free_rows = list(range(max_batch_size - 1, -1, -1))

    @property
    def requests(self) -> Sequence[Request]:
        """The running requests, in order of rank."""
        return self._requests

    @property
    def has_free_row(self) -> bool:
        """Whether another request can run."""
        return bool(self._free_rows)

    def admit(self, request: Request, hit: PrefixHit, schedule: Schedule) -> None:
        """Allocate blocks for all tokens of a waiting request, and run it."""
        try:
            edits = self._kv_cache_manager.admit(request.request_id, len(request.token_ids), hit)
        except BaseException:
            if self._kv_cache_manager.holds(request.request_id):  # without a row `preempt_all` would not release it
                self._kv_cache_manager.release(request.request_id)
            raise
        request.row = self._free_rows.pop()
        request.state = RequestState.PREFILL
        request.capacity = self._kv_cache_manager.capacity(request.request_id)
        insort(self._requests, request, key=self._rank)
        schedule.table_edits += [(request.row, edit) for edit in edits]
        schedule.admitted.append(request)
        if request.block_hashes is not None:
            starts = (*request.submission.message_starts, hit.num_cached_keys)
            self._kv_cache_manager.states.keep(request.request_id, starts)
        if hit.num_tokens:
            request.skip_reused(hit.num_tokens)
            self._note_reader(request, schedule)

    def reuse_blocks(self, request: Request, schedule: Schedule) -> None:
        """Reuse blocks of the prompt that other requests have computed since it was admitted."""
        if request.block_hashes is None or not request.reads_cache:
            return
        block_hashes = request.block_hashes.upto(request.token_ids, len(request.token_ids))
        edits = self._kv_cache_manager.reuse_blocks(request.request_id, block_hashes, request.num_computed_tokens)
        if edits:
            schedule.table_edits += [(request.row, edit) for edit in edits]
            request.skip_reused((edits[-1].column + 1) * self._kv_cache_manager.block_size)
            self._note_reader(request, schedule)

    def next_block(self, request: Request) -> bytes | None:
        """Return the hash of the block that a prompt computes next; None if it is not full or may not be reused."""
        if request.block_hashes is None or not request.reads_cache:
            return None
        block_hashes = request.block_hashes.upto(request.token_ids, len(request.token_ids))
        index = request.num_computed_tokens // self._kv_cache_manager.block_size
        return block_hashes[index] if index < len(block_hashes) else None

    def cache_blocks(self, request: Request, num_tokens: int, schedule: Schedule) -> None:
        """Cache the blocks that are full once `schedule` has computed the first `num_tokens` tokens."""
        block_hashes = self._cache_blocks(request, num_tokens)
        size = self._kv_cache_manager.block_size
        schedule.pending_hashes.update(block_hashes[request.num_computed_tokens // size : num_tokens // size])

    def cache_last_block(self, request: Request, schedule: Schedule) -> None:
        """Cache the block that the last known token fills, if it fills one and `schedule` computes that token.

        While the token was pending, the block had no hash.
        """
        num_tokens = len(request.token_ids)
        if num_tokens % self._kv_cache_manager.block_size == 0 and request.num_computed_tokens == num_tokens - 1:
            self.cache_blocks(request, num_tokens, schedule)

    def cache_computed_block(self, request: Request) -> None:
        """Cache the block that the last computed token fills, if it fills one; all computed tokens must be certain."""
        if request.num_computed_tokens % self._kv_cache_manager.block_size == 0:
            self._cache_blocks(request, request.num_computed_tokens)

    def extend_for_drafts(self, request: Request, num_tokens: int, schedule: Schedule) -> int:
        """Allocate blocks for `num_tokens` tokens, if others need none of these; return how many have room."""
        has_spare = self._kv_cache_manager.num_free_blocks > len(self._requests)
        if num_tokens > request.capacity and has_spare:
            self._try_extend(request, num_tokens, schedule)
        return min(num_tokens, request.capacity)

    def extend_or_preempt(self, request: Request, num_tokens: int, schedule: Schedule) -> bool:
        """Allocate blocks for the first `num_tokens` tokens; preempt others if necessary.

        Returns False if the request was preempted itself.

        Raises:
            KVCacheTooSmallError: there are not enough blocks although no other request holds any.
        """
        while True:
            if self._try_extend(request, num_tokens, schedule):
                return True
            self._preempt_for_blocks(self._choose_victim(), schedule)
            if request.state is RequestState.WAITING:
                return False

    def _cache_blocks(self, request: Request, num_tokens: int) -> list[bytes]:
        """Cache the blocks of the first `num_tokens` tokens; return their hashes, none if it shares no blocks."""
        if request.block_hashes is None:
            return []
        block_hashes = request.block_hashes.upto(request.token_ids, num_tokens)
        self._kv_cache_manager.cache_blocks(request.request_id, block_hashes, num_tokens)
        return block_hashes

    def _try_extend(self, request: Request, num_tokens: int, schedule: Schedule) -> bool:
        """Allocate blocks for the first `num_tokens` tokens; return whether enough were free."""
        edits = self._kv_cache_manager.try_extend(
            request.request_id, num_tokens, first_position=request.num_computed_tokens
        )
        if edits is None:
            return False
        schedule.table_edits += [(request.row, edit) for edit in edits]
        request.capacity = self._kv_cache_manager.capacity(request.request_id)
        return True

    def requeue_pending_readers(self, schedule: Schedule) -> list[tuple[Request, int]]:
        """Requeue the requests that reuse blocks which the failed pass was to compute.

        Returns the items that can be retried. Each of them either computes the blocks that were cached for it, or
        fails, and then its blocks are uncached.
        """
        for request in schedule.pending_readers:
            self._preempt(request)
            request.undo_reuse()
        return [item for item in schedule.items if item[0].state is not RequestState.WAITING]

    def preempt_all(self) -> None:
        """Preempt all running requests, and free leaked blocks; the log says whose they were."""
        for request in tuple(self._requests):
            self._preempt(request)
        if leaked := self._kv_cache_manager.audit():
            logger.error("%d leaked KV blocks are freed: %s.", len(leaked), describe_leaks(leaked))
            self._kv_cache_manager.reclaim()

    def discard(self, request: Request, *, num_kept_tokens: int) -> None:
        """Free a request's memory, if it has any; uncache its blocks after its first `num_kept_tokens` tokens."""
        if request in self._requests:
            self._requests.remove(request)
        if self._kv_cache_manager.holds(request.request_id):
            self._kv_cache_manager.uncache_blocks(request.request_id, min(num_kept_tokens, request.num_computed_tokens))
            self._kv_cache_manager.release(request.request_id)
        if request.row >= 0:
            self._free_rows.append(request.row)
            request.row = -1

    def _choose_victim(self) -> Request:
        """Return the request to preempt: the last in rank, but never the oldest."""
        oldest = min(self._requests, key=lambda request: request.arrival)
        for request in reversed(self._requests):
            if request is not oldest:
                return request
        raise KVCacheTooSmallError(f"request {oldest.request_id} runs alone and gets no further block")

    def _preempt_for_blocks(self, victim: Request, schedule: Schedule) -> None:
        victims = [victim]
        if any(request is victim for request, _ in schedule.items):
            victims += schedule.pending_readers  # they may reuse blocks that the victim was to compute
        for request in victims:
            if request.state is not RequestState.WAITING:
                self._preempt(request)
                schedule.preempted.append(request)
        schedule.items = [item for item in schedule.items if item[0].state is not RequestState.WAITING]

    def _preempt(self, request: Request) -> None:
        if request.row < 0:
            return
        self.discard(request, num_kept_tokens=request.num_computed_tokens)
        request.reset_progress()
        self._requeue(request)

    def _note_reader(self, request: Request, schedule: Schedule) -> None:
        assert request.block_hashes is not None
        schedule.readers.append(request)
        block_hashes = request.block_hashes.upto(request.token_ids, request.num_reused_tokens)
        if schedule.pending_hashes and not schedule.pending_hashes.isdisjoint(
            block_hashes[: request.num_reused_tokens // self._kv_cache_manager.block_size]
        ):
            schedule.pending_readers.append(request)
