"""Workloads are seeded, an open loop stays open, every token of a stream is timed once, failures count as failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import (
    WORKLOADS,
    PlannedRequest,
    Workload,
    make_workload,
    with_poisson_arrivals,
)
from infer_bench.server.metrics import MetricsWatch, describe, served_model, watching
from infer_bench.serving.policies import URGENT, with_urgent
from infer_proofs.server import FakeEngine, Script, running_server

SIZES = {
    "single": (1, (256, 256), (256, 256)),
    "baseline": (10, (256, 256), (256, 256)),
    "mixed": (16, (32, 1024), (64, 256)),
    "continuous_batching": (32, (64, 512), (64, 256)),
    "paged_attention": (48, (128, 384), (128, 256)),
    "chunked_prefill": (48, (64, 2048), (64, 256)),
    "prefix_caching": (48, (1024 + 32, 1024 + 128), (256, 256)),
}
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}\n\ndata: [DONE]\n\n'


def planned(*arrivals_s: float, is_closed_loop: bool = False) -> Workload:
    requests = tuple(PlannedRequest(arrival_s=at_s, prompt=[5, 6, 7, 8], max_tokens=3) for at_s in arrivals_s)
    return Workload(name="test", requests=requests, is_closed_loop=is_closed_loop)


@asynccontextmanager
async def sending(*pieces: str, length: int | None = None) -> AsyncIterator[str]:
    """A server that answers everything with `pieces`, a chunk each; with `length` it promises so many bytes instead."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        for piece in pieces:
            data = piece.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if length is None else data)
            await writer.drain()
        if length is None:
            writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def answers_of(*pieces: str, length: int | None = None) -> list[RequestResult]:
    async with sending(*pieces, length=length) as url:
        return await run_workload(url, planned(0), progress=False)


# Workloads


@pytest.mark.covers("workloads/workloads")
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_has_the_numbers_of_the_specification(name: str) -> None:
    count, prompts, answers = SIZES[name]
    workload = make_workload(name, vocab_size=100)
    assert len(workload.requests) == count
    assert all(prompts[0] <= len(request.prompt) <= prompts[1] for request in workload.requests)
    assert all(answers[0] <= request.max_tokens <= answers[1] for request in workload.requests)
    assert all(0 <= token_id < 100 for request in workload.requests for token_id in request.prompt)
    assert workload.is_closed_loop == (name == "baseline")


@pytest.mark.covers("workloads/arrivals")
def test_arrivals_are_a_burst_even_or_poisson() -> None:
    times = {name: [r.arrival_s for r in make_workload(name, vocab_size=9).requests] for name in WORKLOADS}
    assert set(times["mixed"]) == set(times["paged_attention"]) == {0.0}
    assert times["continuous_batching"] == [index / 4 for index in range(32)]
    assert times["prefix_caching"] == [index / 8 for index in range(48)]
    assert len(set(np.diff(times["chunked_prefill"]))) == 47
    many = make_workload("chunked_prefill", vocab_size=9, num_requests=4000, scale=0.001).requests
    assert many[-1].arrival_s == pytest.approx(4000 / 6, rel=0.1)


@pytest.mark.covers("workloads/workloads")
def test_chunked_prefill_is_mostly_long_and_prefix_caching_shares_exactly_its_prefix() -> None:
    lengths = [len(r.prompt) for r in make_workload("chunked_prefill", vocab_size=9, num_requests=1000).requests]
    assert all(64 <= length <= 128 or 1024 <= length <= 2048 for length in lengths)
    assert sum(length > 128 for length in lengths) / 1000 == pytest.approx(0.75, abs=0.05)
    first, second = make_workload("prefix_caching", vocab_size=50_000).requests[:2]
    assert first.prompt[:1024] == second.prompt[:1024]
    assert first.prompt[1024:1056] != second.prompt[1024:1056]


def test_the_same_arguments_give_the_same_workload_and_other_contents_the_same_work() -> None:
    for name in WORKLOADS:
        own = make_workload(name, vocab_size=99, seed=3)
        assert own == make_workload(name, vocab_size=99, seed=3)
        assert own != make_workload(name, vocab_size=99, seed=4)
        assert own.requests == make_workload(name, vocab_size=99, seed=3, num_requests=60).requests[: len(own.requests)]
    ones, others = (make_workload("mixed", vocab_size=99, contents=contents).requests for contents in (0, 1))
    for one, other in zip(ones, others, strict=True):
        assert (len(one.prompt), one.max_tokens) == (len(other.prompt), other.max_tokens)
        assert one.prompt[:16] != other.prompt[:16]


def test_prompts_are_pieces_of_a_text_where_one_is_given() -> None:
    text = list(range(100, 400))
    ones, others = (make_workload("mixed", vocab_size=9, text=text, contents=contents).requests for contents in (0, 1))
    for request in ones:
        begin = text.index(request.prompt[0])
        assert request.prompt == [text[(begin + place) % 300] for place in range(len(request.prompt))]
    assert [len(request.prompt) for request in ones] == [len(request.prompt) for request in others]
    assert [request.prompt[0] for request in ones] != [request.prompt[0] for request in others]


@pytest.mark.covers("workloads/scaling")
def test_scale_shortens_and_rate_scale_hurries_and_counts_stay() -> None:
    whole = make_workload("continuous_batching", vocab_size=99)
    scaled = make_workload("continuous_batching", vocab_size=99, scale=0.25, rate_scale=2)
    for big, small in zip(whole.requests, scaled.requests, strict=True):
        assert small.max_tokens == round(big.max_tokens / 4)
        assert small.arrival_s == big.arrival_s / 2
    poisson = with_poisson_arrivals(whole, rate=3)
    assert [r.prompt for r in poisson.requests] == [r.prompt for r in whole.requests]
    assert poisson == with_poisson_arrivals(whole, rate=3)


@pytest.mark.parametrize("wrong", [{"name": "x"}, {"scale": 0}, {"rate_scale": -1}, {"num_requests": 0}])
def test_workload_names_what_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is"):
        make_workload(**{"name": "mixed", "vocab_size": 9, **wrong})  # type: ignore[arg-type]  # wrong on purpose


# Requests and their streams


@pytest.mark.covers("workloads/latency")
async def test_every_token_of_our_server_is_timed_and_counted() -> None:
    async with running_server(FakeEngine(Script(num_cached_tokens=2))) as url:
        results = await run_workload(url, planned(0, 0.01, 0.02), progress=False)
    for index, one in enumerate(results):
        assert (one.error, one.finish_reason, one.text) == (None, "stop", "Hello, world")
        assert (one.num_cached_tokens, one.num_tokens, len(one.token_times_s)) == (2, 3, 3)
        assert index * 0.01 <= one.arrival_s <= one.sent_s <= one.token_times_s[0] <= one.ended_s


async def test_requests_are_as_planned_and_urgent_ones_say_so() -> None:
    engine, workload = FakeEngine(), planned(0)
    async with running_server(engine) as url:
        urgent = with_urgent(replace(workload, requests=4 * workload.requests))
        await run_workload(url, urgent, model="fake-model", progress=False)
    assert sorted(request.priority for request in engine.requests) == [URGENT, 0, 0, 0]
    asked = engine.requests[0]
    assert asked.prompt == [5, 6, 7, 8]
    assert (asked.params.max_tokens, asked.params.temperature, asked.params.ignore_eos) == (3, 0, True)


@pytest.mark.covers("workloads/arrivals")
async def test_open_loop_sends_all_while_none_has_ended() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with running_server(engine) as url, asyncio.TaskGroup() as group:
        running = group.create_task(run_workload(url, planned(*[0.0] * 6), progress=False))
        await engine.wait_for_requests(6)
        engine.resume()
    assert [one.error for one in running.result()] == [None] * 6


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_closed_loop_is_limited(limit: int) -> None:
    async with running_server(FakeEngine()) as url:
        work = planned(*[0.0] * 7, is_closed_loop=True)
        results = await run_workload(url, work, progress=False, max_concurrency=limit)
    overlaps = [sum(two.sent_s <= one.sent_s < two.ended_s for two in results) for one in results]
    assert max(overlaps) == limit


@pytest.mark.covers("workloads/errors")
async def test_refusals_lost_servers_and_broken_streams_are_errors() -> None:
    engine = FakeEngine()
    engine.refusal = RuntimeError("a bug")
    async with running_server(engine) as url:
        results = await run_workload(url, planned(0), progress=False)
    results += await run_workload(url, planned(0), progress=False)
    results += await answers_of('data: {"choices": [{"text": "a"}]}\n\n')
    results += await answers_of("data: {", length=99)
    results += await answers_of('data: {"error": {"message": "no memory"}}\n\n')
    expected = ["HTTP 500", "ConnectError", "without a finish reason", "RemoteProtocolError", "no memory"]
    for one, words in zip(results, expected, strict=True):
        assert words in str(one.error)
    summary = summarize(results)
    assert (summary["num_errors"], summary["output_tokens_per_s"]) == (5, None)


@pytest.mark.covers("workloads/errors")
async def test_a_request_that_takes_too_long_has_failed() -> None:
    async with running_server(FakeEngine(Script(pause_after=1))) as url:
        [one] = await run_workload(url, planned(0), progress=False, timeout_s=0.2)
    assert one.error == "no end after 0.2 s"


async def test_events_of_several_tokens_are_counted_by_usage() -> None:
    events = 'data: {"choices": [{"text": "a b"}]}\r\n\r\n'
    events += 'data: {"choices": [{"text": "c d", "finish_reason": "length"}]}\n\n'
    for pieces in ((events, USAGE), tuple(events + USAGE)):  # also one byte at a time
        results = await answers_of(*pieces)
        assert (len(results[0].token_times_s), results[0].num_tokens, results[0].num_prompt_tokens) == (2, 4, 9)
        assert summarize(results)["tokens_per_event"] == 2.0
    results = await answers_of(events)
    assert (results[0].num_tokens, results[0].is_counted_by_server) == (2, False)


async def test_a_token_without_text_counts_and_an_end_counts_where_the_server_counted_one_more() -> None:
    held_back, end = (
        'data: {"choices": [{"text": ""}]}\n\n',
        'data: {"choices": [{"text": "", "finish_reason": "x"}]}\n\n',
    )
    [four] = await answers_of(held_back * 3 + end + USAGE)
    assert (len(four.token_times_s), four.num_tokens) == (4, 4)
    [bare] = await answers_of(held_back * 4 + end + USAGE)
    assert (len(bare.token_times_s), bare.num_tokens) == (4, 4)


# What a server tells


@pytest.mark.covers("workloads/queue-and-occupancy")
def test_metrics_give_peaks_and_growth_whatever_their_prefix() -> None:
    watch = MetricsWatch()
    for usage, preempted, queued_s, queued in ((0.2, 3, 1.0, 5), (0.9, 4, 4.0, 7), (0.1, 6, 9.0, 9)):
        watch.note(
            f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\n'
            f'vllm:num_preemptions_total{{engine="0"}} {preempted:e}\n'
            f"vllm:request_queue_time_seconds_sum {queued_s}\nvllm:request_queue_time_seconds_count {queued}\n"
        )
    assert watch.facts["kv_occupancy_peak"] == 0.9
    assert watch.facts["num_preemptions"] == 3
    assert watch.facts["mean_queue_time_s"] == 2.0


@pytest.mark.covers("workloads/queue-and-occupancy")
async def test_what_a_server_tells_is_kept_and_what_it_lacks_is_left_out() -> None:
    async with running_server(FakeEngine()) as url:
        told = await describe(url, headers={})
        async with watching(url, headers={}) as watch:
            await run_workload(url, planned(0), progress=False)
    assert served_model(told) == ("fake-model", 512)
    assert told["cache_config_info"]["block_size"] == "16"
    assert "/props" not in told
    assert watch.facts["num_queued"] == 1
    async with sending("no JSON") as url:
        assert await describe(url, headers={}) == {}
