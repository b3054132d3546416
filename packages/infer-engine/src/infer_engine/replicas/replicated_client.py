"""`ReplicatedCoreClient`: several cores that look like one.

    frontend ── Submit ──> choose a replica ──> core client 0 ══> core
             <── results ─── combine <───────── core client 1 ══> core
                                                core client 2  x  lost: its requests go to the others, a new core starts

A request that a lost core had goes on in another core with the tokens that it has, as after a preemption. The next
tokens are the same, because draws depend on a request's seed and on the position alone; its reader sees a pause.

New cores are started here, or somebody else brings them (`add`) and takes them away (`retire`).
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence

from infer_engine.ipc.core_client import ENGINE_DEAD, CoreCallbacks, CoreClient
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit, ToCore, TokenOutput
from infer_engine.protocol import EngineStats, InvalidRequestError, RequestFailure
from infer_engine.replicas.bookkeeping import MAX_LOSSES, Replica, TrackedRequest
from infer_engine.replicas.combining import add_counts, combine_stats
from infer_engine.replicas.inspection import Inspection
from infer_engine.replicas.routing import Router
from infer_engine.replicas.supervisor import StartCore, Supervisor

logger = logging.getLogger(__name__)

MAX_ENDED = 1024
"""How many ended requests are remembered, in case a stop string is found in their text later."""

_LOST_TOO_OFTEN = RequestFailure(
    message=f"{MAX_LOSSES} cores ended while they computed this request; the engine's log has the causes.",
    code="engine_dead",
)


class ReplicatedCoreClient:
    """Client of several cores. `infer_engine.ipc.core_client.CoreClient` documents each method."""

    def __init__(
        self,
        clients: Sequence[CoreClient],
        *,
        stats: Sequence[EngineStats],
        router: Router,
        start_core: StartCore | None,
        step_timeout_s: float,
    ) -> None:
        """Use `clients`, whose cores are loaded and have `stats`.

        Args:
            clients: one for each replica; nothing else may use them afterwards.
            stats: their statistics before their first steps.
            router: chooses replicas.
            start_core: loads another core for a replica; it may raise anything. With None somebody else brings cores,
                and finds those that are stuck.
            step_timeout_s: seconds after which a step counts as stuck and its core as lost.
        """
        self._replicas = [Replica(client=client, stats=each) for client, each in zip(clients, stats, strict=True)]
        self._router = router
        self._emit_lock = threading.Lock()  # taken before `_lock`: results leave in the order in which they are made
        self._lock = threading.Lock()  # guards all that follows
        self._tracked: dict[str, TrackedRequest] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()  # requests, with their replicas
        self._inspection = Inspection()
        self._last_placed: tuple[str | None, int] = (None, -1)  # group of siblings, replica
        self._num_replaced = 0
        self._is_stopping = False
        self._num_running = len(self._replicas)  # clients that have not called `on_ended`
        self._has_ended = False
        self._callbacks: CoreCallbacks | None = None
        self._supervisor = (
            None
            if start_core is None
            else Supervisor(
                start_core, step_timeout_s=step_timeout_s, on_started=self._take_core, on_hopeless=self._give_up
            )
        )

    def start(self, callbacks: CoreCallbacks) -> None:
        """Start all clients."""
        self._callbacks = callbacks
        for index, replica in enumerate(self._replicas):
            assert replica.client is not None
            if self._supervisor is not None:
                self._supervisor.watch(index, replica.client)
            replica.client.start(self._callbacks_of(index, replica.client))

    def add(self, client: CoreClient, stats: EngineStats) -> bool:
        """Use one more core, after `start`; return False if the engine has ended."""
        return self._take_core(None, client, stats)

    def retire(self, client: CoreClient) -> None:
        """Give a core no more requests, and stop it when it has none; does nothing if the core has been lost."""
        with self._emit_lock:
            with self._lock:
                for index, replica in enumerate(self._replicas):
                    if replica.client is client:
                        replica.is_retiring = True
                        self._inspection.leave_out(index)
                        self._stop_if_retired(replica)
                result = self._result([])
            self._emit(result)

    def send(self, message: ToCore) -> None:
        """Send a message to the core that it concerns.

        Raises:
            InvalidRequestError: the message cannot be encoded.
        """
        with self._lock:
            match message:
                case Submit():
                    self._submit(message)
                case Abort(request_id=request_id) | Finish(request_id=request_id):
                    self._end(request_id, message)
                case Inspect():
                    self._inspect()

    def stop(self) -> None:
        """End all cores after their current steps."""
        if self._supervisor is not None:
            self._supervisor.stop()
        with self._lock:
            self._is_stopping = True
            clients = self._clients()
        for client in clients:
            client.stop()
        self._report_if_ended()

    def join(self) -> None:
        """Wait for the threads of the clients."""
        for client in self._clients():
            client.join()

    def abandon(self) -> None:
        """Give up all cores."""
        for client in self._clients():
            client.abandon()

    def step_age_s(self) -> float | None:
        """Return None: a stuck core is found and replaced here."""
        return None

    def describe_step(self) -> str:
        """Return which replicas have a core."""
        return f"Replicas with a core: {self._live()}."

    def _submit(self, submission: Submit) -> None:
        request = TrackedRequest(submission)
        self._tracked[submission.request_id] = request
        try:
            self._place(request)
        except InvalidRequestError:
            self._forget(submission.request_id)
            raise

    def _place(self, request: TrackedRequest) -> None:
        """Give a request to a core; it waits while there is none.

        A core has one suspect at most, so that no other one fails with it.
        """
        live = {index: self._replicas[index] for index in self._live()}
        loads = {
            index: replica.num_flights
            for index, replica in live.items()
            if not (request.is_suspect and replica.num_suspects)
        }
        if not loads:
            return
        index = self._choose(request.submission, loads)
        replica = live[index]
        request.replica = index
        replica.num_flights += 1
        replica.num_suspects += request.is_suspect
        assert replica.client is not None
        replica.client.send(request.resumed())

    def _choose(self, submission: Submit, loads: dict[int, int]) -> int:
        """Return a replica; siblings come one after the other and go to the same one, as they share their prompt."""
        group, index = self._last_placed
        if submission.sibling_group is None or submission.sibling_group != group or index not in loads:
            index = self._router.choose(submission.prompt_token_ids, salt=submission.cache_salt, loads=loads)
        self._last_placed = (submission.sibling_group, index)
        return index

    def _forget(self, request_id: str) -> int | None:
        """Forget a request that has ended; return its replica."""
        request = self._tracked.pop(request_id, None)
        if request is None:
            return self._ended.pop(request_id, None)
        if request.replica is not None:
            replica = self._replicas[request.replica]
            replica.num_flights -= 1
            if request.is_suspect:
                replica.num_suspects -= 1
                self._place_waiting()
            self._stop_if_retired(replica)
        return request.replica

    def _stop_if_retired(self, replica: Replica) -> None:
        if replica.is_retiring and replica.num_flights == 0 and replica.client is not None:
            replica.client.stop()

    def _place_waiting(self) -> None:
        for request in [request for request in self._tracked.values() if request.replica is None]:
            self._place(request)

    def _end(self, request_id: str, message: Abort | Finish) -> None:
        index = self._forget(request_id)
        client = None if index is None else self._replicas[index].client
        if client is not None:
            client.send(message)

    def _inspect(self) -> None:
        """Ask all cores for snapshots, unless they have been asked: the frontend gives one to all who wait for it."""
        if self._inspection.is_pending:
            return
        asked = self._live()
        self._inspection.begin(asked)
        for index in asked:
            client = self._replicas[index].client
            assert client is not None
            client.send(Inspect())

    def _callbacks_of(self, index: int, client: CoreClient) -> CoreCallbacks:
        return CoreCallbacks(
            on_result=lambda result: self._on_result(index, result),
            on_lost=lambda failure: self._on_lost(index, failure),
            on_ended=lambda: self._on_ended(index, client),
        )

    def _on_result(self, index: int, result: StepResult) -> None:
        with self._emit_lock:
            with self._lock:
                replica = self._replicas[index]
                replica.stats = add_counts(replica.earlier, result.stats)
                self._inspection.add(index, result.snapshot)
                admitted = [request_id for request_id in result.admitted if self._admit(request_id)]
                outputs = [output for each in result.outputs if (output := self._record(index, each)) is not None]
                combined = self._result(outputs, admitted=admitted, latest=result.stats)
            self._emit(combined)

    def _admit(self, request_id: str) -> bool:
        """Return whether a request leaves the queue for the first time."""
        request = self._tracked.get(request_id)
        if request is None or request.is_admitted:
            return False
        request.is_admitted = True
        return True

    def _record(self, index: int, output: TokenOutput) -> TokenOutput | None:
        """Take note of a request's new tokens; return what the frontend gets, None for requests that have ended."""
        request = self._tracked.get(output.request_id)
        if request is None:
            return None
        output = request.record(output)
        if output.finish_reason is not None or output.error is not None:
            self._forget(output.request_id)
            self._ended[output.request_id] = index
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)
        return output

    def _result(
        self, outputs: list[TokenOutput], *, admitted: Sequence[str] = (), latest: EngineStats | None = None
    ) -> StepResult:
        """Return a result of the engine, with the snapshot if the last core has sent its own."""
        stats = combine_stats(
            [replica.stats for replica in self._replicas],
            latest=latest or EngineStats(),
            num_replaced=self._num_replaced,
        )
        return StepResult(outputs=outputs, admitted=list(admitted), stats=stats, snapshot=self._inspection.take(stats))

    def _on_lost(self, index: int, failure: RequestFailure) -> None:
        """Move the requests of a lost core to the others, and start another one."""
        with self._emit_lock:
            with self._lock:
                self._vacate(index)
                self._replicas[index].is_lost = True
                requests = [request for request in self._tracked.values() if request.replica == index]
                logger.error("Replica %d is lost (%s) with %d requests.", index, failure.code, len(requests))
                failed = [output for request in requests if (output := self._move(request)) is not None]
                result = self._result(failed)
            if self._supervisor is not None:
                self._supervisor.replace(index)
            self._emit(result)

    def _vacate(self, index: int) -> None:
        self._replicas[index].vacate()
        self._router.forget(index)
        self._inspection.leave_out(index)

    def _move(self, request: TrackedRequest) -> TokenOutput | None:
        """Give a request to another core; return its last output if it is too often lost."""
        request.lose_core()
        if request.num_losses < MAX_LOSSES:
            self._place(request)
            return None
        del self._tracked[request.submission.request_id]
        return TokenOutput(
            request_id=request.submission.request_id,
            token_ids=[],
            error=_LOST_TOO_OFTEN,
            num_prompt_tokens=len(request.submission.prompt_token_ids),
            num_completion_tokens=len(request.generated),
            num_cached_tokens=request.num_cached_tokens or 0,
        )

    def _take_core(self, index: int | None, client: CoreClient, stats: EngineStats) -> bool:
        """Use a new core in the place of a lost one, with None in any; return whether it is wanted."""
        with self._emit_lock:
            with self._lock:
                if self._is_stopping or self._has_ended:
                    return False
                if index is None:
                    index = self._vacant()
                client.start(self._callbacks_of(index, client))
                self._num_running += 1
                replica = self._replicas[index]
                self._num_replaced += replica.is_lost
                replica.is_lost = False
                replica.client = client
                replica.stats = add_counts(replica.earlier, stats)
                self._place_waiting()
                if self._inspection.has_lost_all:
                    self._inspect()
                result = self._result([])
            self._emit(result)
        logger.info("Replica %d has a new core.", index)
        return True

    def _vacant(self) -> int:
        """Return a place without a core."""
        for index, replica in enumerate(self._replicas):
            if replica.client is None:
                return index
        self._replicas.append(Replica())
        return len(self._replicas) - 1

    def _give_up(self, index: int) -> None:
        """Report the engine as lost if no other core lives: new ones do not start."""
        assert self._callbacks is not None
        with self._lock:
            if self._live() or self._is_stopping:
                return
        logger.error("No replica has a core, and replica %d cannot start one.", index)
        self._callbacks.on_lost(ENGINE_DEAD)

    def _on_ended(self, index: int, client: CoreClient) -> None:
        with self._emit_lock:
            with self._lock:
                self._num_running -= 1
                result = None
                if self._replicas[index].client is client and not self._is_stopping:  # it has retired
                    self._vacate(index)
                    result = self._result([])
            if result is not None:
                self._emit(result)
        self._report_if_ended()

    def _report_if_ended(self) -> None:
        assert self._callbacks is not None
        with self._lock:
            is_end = self._is_stopping and self._num_running == 0 and not self._has_ended
            self._has_ended |= is_end
        if is_end:
            self._callbacks.on_ended()

    def _emit(self, result: StepResult) -> None:
        assert self._callbacks is not None
        self._callbacks.on_result(result)

    def _live(self) -> list[int]:
        """Return the replicas that take requests."""
        return [
            index
            for index, replica in enumerate(self._replicas)
            if replica.client is not None and not replica.is_retiring
        ]

    def _clients(self) -> list[CoreClient]:
        return [replica.client for replica in self._replicas if replica.client is not None]
