"""What each core is told, and what the frontend is told of it: cores that only record."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from infer_engine.ipc.core_client import ENGINE_DEAD, CoreCallbacks, CoreClient
from infer_engine.messages import Abort, Finish, Inspect, StepResult, Submit, ToCore, TokenOutput
from infer_engine.protocol import BatchSnapshot, EngineStats, FinishReason, SamplingParams
from infer_engine.protocol.stats import DraftCounts
from infer_engine.replicas.prefix_index import BLOCK_TOKENS
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_engine.replicas.routing import Router
from infer_proofs.engine.cores import GIVE_UP_S

STATS = EngineStats(num_blocks=8)


class Recorder:
    """A client whose core is the test."""

    def __init__(self) -> None:
        self.messages: list[ToCore] = []
        self.is_stopped = False

    def start(self, callbacks: CoreCallbacks) -> None:
        self.callbacks = callbacks

    def send(self, message: ToCore) -> None:
        self.messages.append(message)

    def stop(self) -> None:
        self.is_stopped = True

    def join(self) -> None: ...

    def abandon(self) -> None: ...

    def step_age_s(self) -> float | None:
        return None

    def describe_step(self) -> str:
        return ""

    def produce(
        self, request_id: str, *token_ids: int, reason: FinishReason | None = None, cached: int = 0, drafted: int = 0
    ) -> None:
        """Give a request tokens."""
        output = TokenOutput(
            request_id=request_id,
            token_ids=list(token_ids),
            finish_reason=reason,
            num_prompt_tokens=3,
            num_completion_tokens=len(token_ids),
            num_cached_tokens=cached,
            drafts=DraftCounts(num_drafted=drafted) if drafted else None,
        )
        self.callbacks.on_result(StepResult(outputs=[output], admitted=[request_id], stats=STATS))


class Cores:
    """Replicas whose cores record; lost ones are replaced, or else the test adds cores."""

    def __init__(self, *, num_replicas: int, are_replaced: bool) -> None:
        self.clients = [Recorder() for _ in range(num_replicas)]
        self.results: list[StepResult] = []
        self.lost: list[str] = []
        self.has_ended = False
        self._new_clients: queue.SimpleQueue[Recorder | None] = queue.SimpleQueue()
        self.client = ReplicatedCoreClient(
            list(self.clients),
            stats=[STATS] * num_replicas,
            router=Router(policy="prefix", cache_tokens=10_000),
            start_core=self._start_core if are_replaced else None,
            step_timeout_s=GIVE_UP_S,
        )
        self.client.start(
            CoreCallbacks(
                on_result=self._take,
                on_lost=lambda failure: self.lost.append(failure.code),
                on_ended=lambda: setattr(self, "has_ended", True),
            )
        )

    def _take(self, result: StepResult) -> None:
        time.sleep(0)  # so that other threads run here, as they may
        self.results.append(result)

    def _start_core(self, index: int) -> tuple[CoreClient, EngineStats]:
        client = self._new_clients.get(timeout=GIVE_UP_S)
        if client is None:
            raise OSError(f"replica {index} gets no other core")
        return client, STATS

    def replace(self) -> Recorder:
        """Let a lost core be replaced; return the client of the new one."""
        client = Recorder()
        num_results = len(self.results)
        self._new_clients.put(client)
        deadline_s = time.monotonic() + GIVE_UP_S
        while len(self.results) == num_results:  # a result tells that it is in use
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        return client

    def end(self) -> None:
        self.client.stop()
        for _ in self.clients:
            self._new_clients.put(None)

    def submit(self, request_id: str, *prompt: int) -> None:
        self.client.send(
            Submit(request_id=request_id, prompt_token_ids=list(prompt), max_tokens=9, seed=0, params=SamplingParams())
        )

    def outputs(self) -> list[TokenOutput]:
        return [output for result in self.results for output in result.outputs]


@pytest.fixture
def make() -> Iterator[Callable[..., Cores]]:
    """Return a function that makes cores; they end with the test."""
    made: list[Cores] = []

    def make_cores(num_replicas: int = 2, *, are_replaced: bool = True) -> Cores:
        made.append(Cores(num_replicas=num_replicas, are_replaced=are_replaced))
        return made[-1]

    yield make_cores
    for cores in made:
        cores.end()


Make = Callable[..., Cores]


def test_the_end_of_a_text_is_told_to_the_core_that_has_ended_its_request_already(make: Make) -> None:
    cores = make()
    cores.submit("a", 1, 2, 3)
    cores.clients[0].produce("a", 5)
    cores.clients[0].produce("a", 6, reason=FinishReason.LENGTH)  # before the frontend has read the first token
    finish = Finish(request_id="a", num_completion_tokens=1)
    cores.client.send(finish)
    assert cores.clients[0].messages[-1] == finish
    assert len(cores.clients[1].messages) == 0


def test_nobody_is_told_of_unknown_requests(make: Make) -> None:
    cores = make()
    cores.client.send(Abort(request_id="never seen"))
    assert [client.messages for client in cores.clients] == [[], []]


def test_a_moved_request_is_admitted_once_and_keeps_its_counts(make: Make) -> None:
    cores = make()
    cores.submit("a", 1, 2, 3)
    cores.clients[0].produce("a", 5, cached=2, drafted=4)
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    cores.clients[1].produce("a", 6, cached=0)
    cores.clients[1].produce("a", 7, cached=0, drafted=3)
    assert [output.num_cached_tokens for output in cores.outputs()] == [2, 2, 2]
    assert [output.drafts and output.drafts.num_drafted for output in cores.outputs()] == [4, 4, 7]
    assert [request_id for result in cores.results for request_id in result.admitted] == ["a"]


def test_an_aborted_request_is_not_moved(make: Make) -> None:
    cores = make()
    cores.submit("a", 1, 2, 3)
    cores.client.send(Abort(request_id="a"))
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    assert cores.clients[1].messages == []
    cores.clients[1].produce("a", 6)
    assert cores.outputs() == []


def test_what_a_lost_core_had_cached_is_not_looked_for_in_its_place(make: Make) -> None:
    cores = make(num_replicas=3)
    prompt = [1] * BLOCK_TOKENS
    cores.submit("a", *prompt)
    cores.clients[0].produce("a", 5, reason=FinishReason.LENGTH)
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    fresh = cores.replace()
    for request_id in ("b", "c", "d"):
        cores.submit(request_id, 9)
    for request_id in ("b", "c"):
        cores.client.send(Abort(request_id=request_id))
    assert [type(message) for message in fresh.messages] == [Submit], "it has one request, and the others none"
    cores.submit("e", *prompt)
    assert len(fresh.messages) == 1, "it is not the least loaded, and knows nothing"


@pytest.mark.covers("replicas/metrics")
def test_no_count_falls_when_a_core_is_replaced_and_computes_on(make: Make) -> None:
    cores = make()

    def step(client: Recorder, num_steps: int) -> int:
        stats = EngineStats(num_blocks=8, num_steps=num_steps)
        client.callbacks.on_result(StepResult(outputs=[], admitted=[], stats=stats))
        return cores.results[-1].stats.num_steps

    assert step(cores.clients[0], 5) == 5
    assert step(cores.clients[1], 2) == 7
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    assert cores.results[-1].stats.num_steps == 7
    fresh = cores.replace()
    assert cores.results[-1].stats.num_steps == 7
    assert [step(fresh, 1), step(fresh, 2)] == [8, 9]
    fresh.callbacks.on_lost(ENGINE_DEAD)
    assert cores.results[-1].stats.num_steps == 9


def moved_to(*clients: Recorder) -> list[list[str]]:
    """Return the requests that each of some cores got."""
    return [[each.request_id for each in client.messages if isinstance(each, Submit)] for client in clients]


def test_suspects_are_kept_apart_so_that_one_fails_alone(make: Make) -> None:
    cores = make()
    names = ["a", "b", "c"]
    for name in names:
        cores.submit(name, *[1] * BLOCK_TOKENS)
    first, second = cores.clients
    assert moved_to(first, second) == [names, []]
    first.callbacks.on_lost(ENGINE_DEAD)
    assert moved_to(second) == [names]
    third = cores.replace()
    second.callbacks.on_lost(ENGINE_DEAD)  # from here on any of the three may be what ends cores
    assert moved_to(third) == [["a"]]
    fourth = cores.replace()
    assert moved_to(third, fourth) == [["a"], ["b"]]
    third.produce("a", 5, reason=FinishReason.LENGTH)
    assert moved_to(third, fourth) == [["a", "c"], ["b"]]
    fourth.callbacks.on_lost(ENGINE_DEAD)
    [failed] = [output for output in cores.outputs() if output.error is not None]
    assert failed.request_id == "b"
    cores.submit("d", 9)
    assert moved_to(third) == [["a", "c", "d"]], "who is no suspect waits for nobody"
    fifth = cores.replace()
    assert fifth.messages == []
    third.callbacks.on_lost(ENGINE_DEAD)
    assert moved_to(fifth) == [["d"]]
    sixth = cores.replace()
    fifth.callbacks.on_lost(ENGINE_DEAD)
    assert moved_to(sixth) == [["d"]], "a new core has no suspects"


def test_the_end_comes_when_all_cores_have_ended(make: Make) -> None:
    cores = make()
    cores.client.stop()
    assert all(client.is_stopped for client in cores.clients)
    cores.clients[0].callbacks.on_ended()
    assert not cores.has_ended
    cores.clients[1].callbacks.on_ended()
    assert cores.has_ended


@pytest.mark.covers("replicas/metrics")
def test_the_last_result_has_the_last_statistics_of_all_replicas(make: Make) -> None:
    cores = make(num_replicas=4)
    all_begin = threading.Barrier(4)

    def compute(client: Recorder) -> None:
        all_begin.wait(GIVE_UP_S)
        for i in range(1000):
            client.callbacks.on_result(StepResult(outputs=[], admitted=[], stats=EngineStats(num_steps=i + 1)))

    threads = [threading.Thread(target=compute, args=(client,)) for client in cores.clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.stats.num_steps for result in cores.results] == list(range(1, 4001))


def add(cores: Cores) -> Recorder:
    client = Recorder()
    assert cores.client.add(client, STATS)
    return client


def test_requests_wait_for_the_first_core_that_joins(make: Make) -> None:
    cores = make(num_replicas=0, are_replaced=False)
    cores.submit("a", 1)
    cores.submit("aborted", 2)
    cores.client.send(Abort(request_id="aborted"))
    joined = add(cores)
    assert moved_to(joined) == [["a"]]
    assert (cores.results[-1].stats.num_blocks, cores.results[-1].stats.num_replaced) == (8, 0)
    other = add(cores)
    cores.submit("b", 3)
    assert moved_to(joined, other) == [["a"], ["b"]]
    assert cores.results[-1].stats.num_blocks == 16


def test_a_core_that_retires_ends_its_requests_and_gets_no_more(make: Make) -> None:
    cores = make(are_replaced=False)
    retired, other = cores.clients
    cores.submit("a", 1)
    cores.client.retire(retired)
    assert [client.is_stopped for client in cores.clients] == [False, False]
    for request_id in ("b", "c"):
        cores.submit(request_id, 2)
    assert moved_to(retired, other) == [["a"], ["b", "c"]]
    retired.produce("a", 5, reason=FinishReason.LENGTH)
    assert [client.is_stopped for client in cores.clients] == [True, False]
    retired.callbacks.on_ended()
    assert cores.outputs()[-1].token_ids == [5]
    assert (cores.has_ended, cores.lost) == (False, [])
    cores.client.retire(other)
    stopped = []
    for request_id in ("b", "c"):
        stopped.append(other.is_stopped)
        cores.client.send(Abort(request_id=request_id))
    assert [*stopped, other.is_stopped] == [False, False, True]


def test_a_core_that_joins_takes_the_place_of_one_that_has_retired(make: Make) -> None:
    cores = make(are_replaced=False)
    retired, other = cores.clients
    cores.client.retire(retired)
    assert retired.is_stopped, "it has no requests"
    retired.callbacks.on_ended()
    assert [each.num_blocks for each in cores.results[-1].stats.replicas] == [0, 8]
    joined = add(cores)
    other.produce("unknown", 1)
    stats = cores.results[-1].stats
    assert (len(stats.replicas), stats.num_blocks, stats.num_replaced) == (2, 16, 0)
    cores.submit("a", 1)
    cores.submit("b", 2)
    assert sorted(moved_to(joined, other)) == [["a"], ["b"]]


def test_the_requests_of_a_core_that_is_lost_while_it_retires_go_on(make: Make) -> None:
    cores = make(are_replaced=False)
    retired, other = cores.clients
    cores.submit("a", 1)
    cores.client.retire(retired)
    retired.callbacks.on_lost(ENGINE_DEAD)
    retired.callbacks.on_ended()
    assert moved_to(other) == [["a"]]
    cores.client.retire(retired)  # nobody knows it any more
    assert add(cores).messages == []


def test_a_snapshot_waits_for_no_core_that_retires(make: Make) -> None:
    cores = make(are_replaced=False)
    retired, other = cores.clients
    cores.submit("a", 1)
    snapshot = BatchSnapshot(stats=STATS, sequences=[], block_size=16, num_blocks=8, holders=[0] * 8)
    for num_asked in (1, 2):
        cores.client.send(Inspect())
        other.callbacks.on_result(StepResult(outputs=[], admitted=[], stats=STATS, snapshot=snapshot))
        assert [client.messages.count(Inspect()) for client in cores.clients] == [1, num_asked]
        if num_asked == 1:
            assert cores.results[-1].snapshot is None
            cores.client.retire(retired)
        last = cores.results[-1].snapshot
        assert last is not None
        assert last.num_blocks == 8


def test_a_snapshot_that_only_lost_cores_were_asked_for_is_asked_of_the_one_that_joins(make: Make) -> None:
    cores = make(num_replicas=1, are_replaced=False)
    cores.client.send(Inspect())
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    cores.clients[0].callbacks.on_ended()
    joined = add(cores)
    assert joined.messages == [Inspect()]
    snapshot = BatchSnapshot(stats=STATS, sequences=[], block_size=16, num_blocks=8, holders=[0] * 8)
    joined.callbacks.on_result(StepResult(outputs=[], admitted=[], stats=STATS, snapshot=snapshot))
    assert cores.results[-1].snapshot is not None


def test_without_any_core_requests_wait_and_a_core_that_joins_counts_as_the_lost_ones_replacement(make: Make) -> None:
    cores = make(num_replicas=1, are_replaced=False)
    cores.submit("a", 1)
    cores.clients[0].callbacks.on_lost(ENGINE_DEAD)
    cores.clients[0].callbacks.on_ended()
    assert (cores.has_ended, cores.lost) == (False, [])
    assert moved_to(add(cores)) == [["a"]]
    assert cores.results[-1].stats.num_replaced == 1


def test_an_engine_that_has_ended_takes_no_core(make: Make) -> None:
    cores = make(num_replicas=0, are_replaced=False)
    cores.client.stop()
    assert cores.has_ended
    assert not cores.client.add(Recorder(), STATS)
