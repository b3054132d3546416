"""Several cores behind one engine: where requests go, and that the loss of a core costs its requests only time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from infer_engine import LLM, build_engine
from infer_engine.assembly.replicas import config_of_replica
from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.ipc.core_client import CoreClient
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.messages import Abort, Finish, Submit
from infer_engine.protocol import (
    EngineConfig,
    EngineStats,
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    RequestStream,
    SamplingParams,
    StepOutput,
)
from infer_engine.protocol.config import RoutingPolicy
from infer_engine.replicas import supervisor
from infer_engine.replicas.bookkeeping import MAX_LOSSES
from infer_engine.replicas.combining import combine_stats
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_engine.replicas.routing import Router
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import (
    GIVE_UP_S,
    INFO,
    MAX_SEQ_LEN,
    NUM_BLOCKS,
    VOCAB_SIZE,
    GatedCore,
    ScriptedCore,
    read,
    scripted_tokens,
    tokens_of,
)

LONG = 40


class Replicas:
    """An engine over scripted cores, whose steps wait for permits; `cores` and `gates` grow with each replacement."""

    def __init__(self, num_replicas: int = 2, *, policy: RoutingPolicy = "least_loaded") -> None:
        self.cores: list[ScriptedCore] = []
        self.gates: list[GatedCore] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.num_starts = 0
        self.start_fails_with: Exception | None = None
        clients = [self._new_client() for _ in range(num_replicas)]
        stats = [core.stats for core in self.cores]
        self.client = ReplicatedCoreClient(
            clients,
            stats=stats,
            router=Router(policy=policy, cache_tokens=NUM_BLOCKS),
            start_core=self._start_core,
            step_timeout_s=GIVE_UP_S,
        )
        limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
        self.engine = AsyncEngine(
            self.client,
            InputProcessor(dummy_tokenizer(VOCAB_SIZE), limits, seed=0),
            info=INFO,
            stats=combine_stats(stats, latest=stats[0]),
            max_waiting_requests=100,
        )

    def _new_client(self) -> CoreClient:
        self.cores.append(ScriptedCore(max_batch_size=20))
        self.gates.append(GatedCore(self.cores[-1]))
        return ThreadCoreClient(self.gates[-1])

    def _start_core(self, index: int) -> tuple[CoreClient, EngineStats]:
        del index
        self.num_starts += 1
        assert self.may_start.wait(GIVE_UP_S)
        if self.start_fails_with is not None:
            raise self.start_fails_with
        return self._new_client(), self.cores[-1].stats

    async def lose(self, core: int) -> None:
        """Let a core end in its next step, and wait until its requests have other places."""
        num_starts = self.num_starts
        self.cores[core].breaks_with = RuntimeError("lost on purpose")
        self.gates[core].allow()
        await until(lambda: self.num_starts > num_starts)

    async def submit(self, *prompts: list[int], max_tokens: int = LONG, **params: object) -> list[RequestStream]:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, **params)  # type: ignore[arg-type]  # by name
        return await self.engine.submit([GenerateRequest(prompt=prompt, params=sampling) for prompt in prompts])

    def prompts_of(self, core: int) -> list[list[int]]:
        """Return the prompts that a core got."""
        return [each.prompt_token_ids for each in self.cores[core].messages if isinstance(each, Submit)]

    def finished_in(self, core: int) -> list[str]:
        """Return the requests whose text has ended, as a core was told."""
        return [each.request_id for each in self.cores[core].messages if isinstance(each, Finish)]

    def allow_all(self) -> None:
        for gate in self.gates:
            gate.allow()


@asynccontextmanager
async def replicas(num_replicas: int = 2, *, policy: RoutingPolicy = "least_loaded") -> AsyncIterator[Replicas]:
    found = Replicas(num_replicas, policy=policy)
    try:
        yield found
    finally:
        found.may_start.set()
        found.allow_all()
        await found.engine.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVE_UP_S):
        while not condition():  # noqa: ASYNC110 - replicas tell counts, no events
            await asyncio.sleep(0.001)


async def first(stream: RequestStream, num_outputs: int) -> list[StepOutput]:
    """Return the next outputs of a stream."""
    outputs: list[StepOutput] = []
    async for output in stream:
        outputs.append(output)
        if len(outputs) == num_outputs:
            break
    return outputs


@pytest.mark.covers("replicas/data-parallel")
async def test_requests_are_spread_and_answered() -> None:
    async with replicas(3) as found:
        prompts = [[i] for i in range(9)]
        streams = await found.submit(*prompts)
        found.allow_all()
        for prompt, stream in zip(prompts, streams, strict=True):
            assert tokens_of(await read(stream)) == scripted_tokens(prompt, LONG)
        assert [len(found.prompts_of(core)) for core in range(3)] == [3, 3, 3]


async def test_requests_of_a_lost_core_go_on_in_another_with_the_tokens_that_they_have() -> None:
    async with replicas() as found:
        found.may_start.clear()  # no new core: the other one has to take them
        moved, stayed = await found.submit([1], [2])
        found.gates[0].allow(3)
        begun = await first(moved, 3)
        await found.lose(0)
        found.gates[1].allow(1)  # a core takes messages between its steps
        await until(lambda: [1] in found.prompts_of(1))
        resumed = next(
            each for each in found.cores[1].messages if isinstance(each, Submit) and each.prompt_token_ids == [1]
        )
        assert resumed.generated_token_ids == scripted_tokens([1], 3)
        found.gates[1].allow()
        outputs = begun + await read(moved)
        assert tokens_of(outputs) == scripted_tokens([1], LONG)
        assert outputs[-1].finish_reason is FinishReason.LENGTH
        assert outputs[-1].num_completion_tokens == LONG
        assert tokens_of(await read(stayed)) == scripted_tokens([2], LONG)
        assert found.engine.status is EngineStatus.READY


@pytest.mark.covers("replicas/replaced-core")
async def test_a_lost_core_is_replaced_and_gets_requests_again() -> None:
    async with replicas() as found:
        [stream] = await found.submit([1])
        await found.lose(0)
        await until(lambda: len(found.cores) == 3)
        found.allow_all()
        assert tokens_of(await read(stream)) == scripted_tokens([1], LONG)
        await until(lambda: found.engine.stats.num_replaced == 1)
        streams = await found.submit([3], [4])
        found.allow_all()
        for prompt, stream in zip([[3], [4]], streams, strict=True):
            assert tokens_of(await read(stream)) == scripted_tokens(prompt, LONG)
        assert len(found.prompts_of(2)) == 1


@pytest.mark.covers("replicas/no-core-left")
async def test_requests_wait_while_no_core_is_left() -> None:
    async with replicas() as found:
        found.may_start.clear()
        [early] = await found.submit([1])
        found.gates[0].allow(2)
        begun = await first(early, 2)
        await found.lose(0)
        await until(lambda: [1] in found.prompts_of(1))
        await found.lose(1)
        [late] = await found.submit([2])
        assert found.engine.status is EngineStatus.READY
        found.may_start.set()
        await until(lambda: len(found.cores) == 4)
        found.allow_all()
        assert tokens_of(begun + await read(early)) == scripted_tokens([1], LONG)
        assert tokens_of(await read(late)) == scripted_tokens([2], LONG)


@pytest.mark.covers("replicas/three-lost-cores")
async def test_a_request_that_loses_too_many_cores_fails_and_the_others_do_not() -> None:
    async with replicas(1) as found:
        [stream] = await found.submit([1])
        for lost in range(MAX_LOSSES):
            await until(lambda lost=lost: len(found.cores) > lost and [1] in found.prompts_of(lost))  # type: ignore[misc]  # bound now
            await found.lose(lost)
        outputs = await read(stream)
        assert outputs[-1].error is not None
        assert outputs[-1].error.code == "engine_dead"
        await until(lambda: len(found.cores) == MAX_LOSSES + 1)
        [other] = await found.submit([2])
        found.allow_all()
        assert tokens_of(await read(other)) == scripted_tokens([2], LONG)


@pytest.mark.covers("replicas/aborts-and-choices")
async def test_a_moved_request_is_aborted_and_finished_where_it_is() -> None:
    async with replicas() as found:
        found.may_start.clear()
        token_text = dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([3], 4)[3:])
        streams = await found.submit([1], [2])
        [stopped] = await found.submit([3], stop=(token_text,))
        aborted = streams[0]
        await found.lose(0)
        found.gates[1].allow(1)
        await until(lambda: len(found.prompts_of(1)) == 3)
        aborted.abort()
        found.gates[1].allow(1)
        await until(lambda: Abort(request_id=aborted.request_id) in found.cores[1].messages)
        found.gates[1].allow()
        assert (await read(stopped))[-1].finish_reason is FinishReason.STOP
        await until(lambda: stopped.request_id in found.finished_in(1))
        assert tokens_of(await read(streams[1])) == scripted_tokens([2], LONG)


async def test_statistics_are_those_of_all_replicas_and_of_lost_cores() -> None:
    async with replicas() as found:
        streams = await found.submit([1], [2], max_tokens=10)
        found.allow_all()
        for stream in streams:
            await read(stream)
        await until(lambda: found.engine.stats.num_steps == 20)
        assert (found.engine.stats.num_blocks, len(found.engine.stats.replicas)) == (2 * NUM_BLOCKS, 2)
        [stream] = await found.submit([1])
        await found.lose(0)
        await until(lambda: len(found.cores) == 3)
        found.allow_all()
        await read(stream)
        await until(lambda: found.engine.stats.num_steps >= 20 + LONG)
        assert sum(each.num_steps for each in found.engine.stats.replicas) == found.engine.stats.num_steps


@pytest.mark.covers("replicas/batch-view")
async def test_a_snapshot_shows_all_replicas_and_waits_for_no_lost_one() -> None:
    async with replicas() as found:
        assert (await found.engine.inspect()).num_blocks == 2 * NUM_BLOCKS
        found.may_start.clear()
        await found.submit([1])
        look = asyncio.create_task(found.engine.inspect())
        await asyncio.sleep(0)
        await found.lose(0)
        found.gates[1].allow()
        assert (await look).num_blocks == NUM_BLOCKS


async def test_a_snapshot_waits_for_a_core_if_there_is_none() -> None:
    async with replicas(1) as found:
        found.may_start.clear()
        await found.submit([1])
        await found.lose(0)
        look = asyncio.create_task(found.engine.inspect())
        await asyncio.sleep(0)
        found.may_start.set()
        await until(lambda: len(found.gates) == 2)
        found.allow_all()
        assert (await look).num_blocks == NUM_BLOCKS


@pytest.mark.covers("replicas/aborts-and-choices")
async def test_choices_of_one_prompt_stay_together() -> None:
    async with replicas() as found:
        streams = await found.submit([1], [2], n=3)
        found.allow_all()
        for stream in streams:
            await read(stream)
        assert [found.prompts_of(core) for core in range(2)] == [[[1]] * 3, [[2]] * 3]


@pytest.mark.covers("replicas/no-core-left")
async def test_an_engine_without_a_core_that_none_replaces_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.0)
    async with replicas() as found:
        found.start_fails_with = OSError("no memory left, on purpose")
        [stream] = await found.submit([1])
        await found.lose(0)
        await until(lambda: [1] in found.prompts_of(1))
        await until(lambda: found.num_starts > supervisor.MAX_FAILED_STARTS)
        assert found.engine.status is EngineStatus.READY, "the other core serves"
        await found.lose(1)
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_dead"
        with pytest.raises(EngineUnavailableError):
            await found.submit([2])


async def test_an_engine_ends_while_a_core_starts() -> None:
    async with replicas() as found:
        found.may_start.clear()
        await found.submit([1])
        await found.lose(0)
        found.allow_all()
        await found.engine.close()
        assert found.engine.status is EngineStatus.STOPPED


async def test_requests_with_a_common_beginning_go_to_one_replica_until_it_is_busy() -> None:
    async with replicas(policy="prefix") as found:
        common = list(range(32))
        prompts = [[*common, 1], [99] * 33, *([*common, i] for i in range(20))]
        streams = [(await found.submit(prompt, max_tokens=2))[0] for prompt in prompts]
        found.allow_all()
        for stream in streams:
            await read(stream)
        taken = [sum(prompt[:32] == common for prompt in found.prompts_of(core)) for core in range(2)]
        assert taken == [11, 10], "the second one when the first one had too many"


def test_a_library_and_a_thread_have_no_replicas() -> None:
    config = EngineConfig(data_parallel_size=2)
    with pytest.raises(ValueError, match="`data_parallel_size` is 2, but an `LLM`"):
        LLM(config=config)
    with pytest.raises(ValueError, match="`data_parallel_size` is 2, and each copy needs its own process"):
        build_engine(config, engine_process=False)
    with pytest.raises(ValueError, match="`data_parallel_size` is 2 but `device` is 'cuda:1'"):
        EngineConfig(data_parallel_size=2, device="cuda:1")


@pytest.mark.parametrize(
    ("num_ranks", "devices"), [(1, ["cuda:0", "cuda:1", "cuda:2"]), (2, ["cuda:0", "cuda:2", "cuda:4"])]
)
def test_each_copy_begins_on_a_gpu_of_its_own_with_room_for_its_ranks(num_ranks: int, devices: list[str]) -> None:
    config = EngineConfig(data_parallel_size=3, tensor_parallel_size=num_ranks)
    first = structs.replace(INFO, device="cuda:0")
    assert [config_of_replica(index, config, first).device for index in range(3)] == devices
    on_cpu = config_of_replica(2, config, INFO)
    assert (on_cpu.device, on_cpu.max_seq_len) == ("auto", INFO.max_seq_len)
