"""The running requests and the memory that they hold. Knows rows and block tables; knows no queue and no budget."""

from bisect import insort
from collections.abc import Callable, Sequence

from infer_cache.paged_manager import PrefixHit
from infer_engine.core.request import Request, RequestState
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.schedule import Schedule
from infer_engine.scheduling.waiting_queue import Rank


class NoRoomError(RuntimeError):
    """A request that has the whole cache to itself gets no memory: the cache is not what it was sized for."""


class RunningBatch:
    """Requests that hold memory, in order of rank: the last one is the first to lose it."""

    def __init__(
        self, kv_cache_manager: KVCacheManager, *, max_batch_size: int, rank: Rank, put_back: Callable[[Request], None]
    ) -> None:
        """Give up to `max_batch_size` requests a row each; who loses its memory is handed to `put_back`."""
        self._kv_cache_manager = kv_cache_manager
        self._rank = rank
        self._put_back = put_back
        self._requests: list[Request] = []
        self._free_rows = list(range(max_batch_size - 1, -1, -1))

    @property
    def requests(self) -> Sequence[Request]:
        """The running requests, in order of rank."""
        return self._requests

    @property
    def has_free_row(self) -> bool:
        """Whether one more request can run."""
        return bool(self._free_rows)

    def admit(self, request: Request, hit: PrefixHit, schedule: Schedule) -> None:
        """Reserve a waiting request's memory, whole, and let it run."""
        try:
            edits = self._kv_cache_manager.admit(request.request_id, len(request.token_ids), hit)
        except BaseException:
            if self._kv_cache_manager.holds(
                request.request_id
            ):  # it has no row yet, by which `put_all_back` would know it
                self._kv_cache_manager.release(request.request_id)
            raise
        request.row = self._free_rows.pop()
        request.state = RequestState.PREFILL
        request.capacity = self._kv_cache_manager.capacity(request.request_id)
        insort(self._requests, request, key=self._rank)
        schedule.table_edits += [(request.row, edit) for edit in edits]
        schedule.admitted.append(request)
        if hit.num_tokens:
            request.skip_reused(hit.num_tokens)
            self._note_reader(request, schedule)

    def reuse_blocks(self, request: Request, schedule: Schedule) -> None:
        """Let a prompt go on where others that have the same one have come to."""
        if request.block_hashes is None or not request.reads_cache:
            return
        block_hashes = request.block_hashes.upto(request.token_ids, len(request.token_ids))
        edits = self._kv_cache_manager.reuse_blocks(request.request_id, block_hashes, request.num_computed_tokens)
        if edits:
            schedule.table_edits += [(request.row, edit) for edit in edits]
            request.skip_reused((edits[-1].column + 1) * self._kv_cache_manager.block_size)
            self._note_reader(request, schedule)

    def cache_blocks(self, request: Request, num_tokens: int, schedule: Schedule) -> None:
        """Let others find the blocks that are full once the first `num_tokens` tokens are computed."""
        if request.block_hashes is None:
            return
        block_hashes = request.block_hashes.upto(request.token_ids, num_tokens)
        self._kv_cache_manager.cache_blocks(request.request_id, block_hashes, num_tokens)
        size = self._kv_cache_manager.block_size
        schedule.pending_hashes.update(block_hashes[request.num_computed_tokens // size : num_tokens // size])

    def make_room(self, request: Request, num_tokens: int, schedule: Schedule) -> bool:
        """Make room for the request's first `num_tokens` tokens, at the cost of others; False if it lost its own.

        Raises:
            NoRoomError: there is no room though nobody else holds memory.
        """
        while True:
            edits = self._kv_cache_manager.try_extend(
                request.request_id, num_tokens, first_position=request.num_computed_tokens
            )
            if edits is not None:
                schedule.table_edits += [(request.row, edit) for edit in edits]
                request.capacity = self._kv_cache_manager.capacity(request.request_id)
                return True
            self._preempt(self._victim(), schedule)
            if request.state is RequestState.WAITING:
                return False

    def withdraw(self, schedule: Schedule) -> list[tuple[Request, int]]:
        """Put back those that were to read what others were to write in a failed pass: they begin anew.

        Returns the items that can be tried again as they are. Those either write what they have promised to the ones
        that come after this step, or fail, and then nothing of theirs may be found.
        """
        for request in schedule.pending_readers:
            request.undo_reuse()
            self._lose(request)
        return [item for item in schedule.items if item[0].state is not RequestState.WAITING]

    def put_all_back(self) -> None:
        """Take the memory of all, and whatever memory is left without an owner."""
        for request in tuple(self._requests):
            self._lose(request)
        self._kv_cache_manager.reclaim()

    def discard(self, request: Request, *, num_kept_tokens: int) -> None:
        """Take a request's memory, if it has any; only its first `num_kept_tokens` tokens may be found afterwards."""
        if request in self._requests:
            self._requests.remove(request)
        if self._kv_cache_manager.holds(request.request_id):
            self._kv_cache_manager.uncache_blocks(request.request_id, min(num_kept_tokens, request.num_computed_tokens))
            self._kv_cache_manager.release(request.request_id)
        if request.row >= 0:
            self._free_rows.append(request.row)
            request.row = -1

    def _victim(self) -> Request:
        """Who loses its memory next: the last in rank, but never the one that came first of all."""
        oldest = min(self._requests, key=lambda request: request.arrival)
        for request in reversed(self._requests):
            if request is not oldest:
                return request
        raise NoRoomError(f"request {oldest.request_id} is alone and its next block is refused")

    def _preempt(self, victim: Request, schedule: Schedule) -> None:
        victims = [victim]
        if any(request is victim for request, _ in schedule.items):
            victims += schedule.pending_readers  # of what the victim, among others, was to write
        for request in victims:
            if request.state is not RequestState.WAITING:
                self._lose(request)
                schedule.preempted.append(request)
        schedule.items = [item for item in schedule.items if item[0].state is not RequestState.WAITING]

    def _lose(self, request: Request) -> None:
        if request.row < 0:
            return
        self.discard(request, num_kept_tokens=request.num_computed_tokens)
        request.reset_progress()
        self._put_back(request)

    def _note_reader(self, request: Request, schedule: Schedule) -> None:
        assert request.block_hashes is not None
        block_hashes = request.block_hashes.upto(request.token_ids, request.num_reused_tokens)
        if schedule.pending_hashes and not schedule.pending_hashes.isdisjoint(
            block_hashes[: request.num_reused_tokens // self._kv_cache_manager.block_size]
        ):
            schedule.pending_readers.append(request)
