"""`/metrics` has the names, types and labels that dashboards use, in every state of the engine."""

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from infer_engine.protocol import EngineStats, EngineStatus
from infer_proofs.server import FakeEngine, Script, metric_samples, running_server
from infer_proofs.server.client import client_of
from infer_server.observability.metrics import ServerMetrics

ENGINE = {"model_name", "engine"}

GAUGES = {
    "infer:num_requests_running": ENGINE,
    "infer:num_requests_waiting": ENGINE,
    "infer:kv_cache_usage_perc": ENGINE,
    "infer:prefill_tokens_beside_decodes": ENGINE,
    "infer:num_leaked_blocks": ENGINE,
    "infer:engine_up": ENGINE,
    "infer:kv_blocks": ENGINE | {"state"},
    "infer:cache_config_info": ENGINE
    | {
        "architecture",
        "block_size",
        "device",
        "dtype",
        "max_batch_size",
        "max_seq_len",
        "num_gpu_blocks",
        "num_kv_blocks",
        "num_replicas",
        "num_ranks",
    },
}
COUNTERS = {
    "infer:prompt_tokens_total": ENGINE,
    "infer:generation_tokens_total": ENGINE,
    "infer:request_success_total": ENGINE | {"finished_reason"},
    "infer:request_failure_total": ENGINE | {"code"},
    "infer:num_preemptions_total": ENGINE,
    "infer:prefix_cache_queries_total": ENGINE,
    "infer:prefix_cache_hits_total": ENGINE,
    "infer:prompt_tokens_by_source_total": ENGINE | {"source"},
    "infer:prompt_tokens_cached_total": ENGINE,
    "infer:computed_tokens_total": ENGINE,
    "infer:num_steps_total": ENGINE,
    "infer:busy_seconds_total": ENGINE,
    "infer:num_finished_requests_total": ENGINE,
    "infer:num_aborted_requests_total": ENGINE,
    "infer:num_failed_requests_total": ENGINE,
    "infer:num_failed_passes_total": ENGINE,
    "infer:num_evictions_total": ENGINE,
    "infer:spec_decode_num_drafts_total": ENGINE,
    "infer:spec_decode_num_draft_tokens_total": ENGINE,
    "infer:spec_decode_num_accepted_tokens_total": ENGINE,
    "infer:spec_decode_num_accepted_tokens_per_pos_total": ENGINE | {"position"},
    "http_requests_total": {"handler", "method", "status"},
}
HISTOGRAMS = {
    "infer:time_to_first_token_seconds": ENGINE,
    "infer:inter_token_latency_seconds": ENGINE,
    "infer:request_time_per_output_token_seconds": ENGINE,
    "infer:e2e_request_latency_seconds": ENGINE,
    "infer:request_queue_time_seconds": ENGINE,
    "infer:request_inference_time_seconds": ENGINE,
    "infer:request_prefill_time_seconds": ENGINE,
    "infer:request_decode_time_seconds": ENGINE,
    "infer:request_prompt_tokens": ENGINE,
    "infer:request_generation_tokens": ENGINE,
    "infer:request_max_num_generation_tokens": ENGINE,
    "infer:request_params_n": ENGINE,
    "infer:request_params_max_tokens": ENGINE,
    "infer:request_prefill_kv_computed_tokens": ENGINE,
    "infer:iteration_tokens_total": ENGINE,
    "http_request_duration_seconds": {"handler", "method"},
    "http_request_duration_highr_seconds": set(),
}
SUMMARIES = {"http_request_size_bytes": {"handler"}, "http_response_size_bytes": {"handler"}}


def metrics_of(engine: FakeEngine, *, served_model: str = "m") -> ServerMetrics:
    metrics = ServerMetrics(engine, served_model=served_model)
    metrics.http.record(handler="/x", method="GET", status=200, duration_s=0.1, num_bytes_in=1, num_bytes_out=2)
    return metrics


def shape(families: list[Metric]) -> dict[str, tuple[str, set[str]]]:
    """Return each metric's type and labels by its name as a dashboard writes it; the process's own left out."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
        if not family.name.startswith("process_")
    }


EXPECTED = {
    name: (kind, labels)
    for kind, table in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS), ("summary", SUMMARIES))
    for name, labels in table.items()
}


@pytest.mark.covers("http/metrics", "http/metric-names")
def test_metrics_have_the_names_types_and_labels_that_dashboards_know() -> None:
    text, content_type = metrics_of(FakeEngine()).exposition("*/*")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert shape(list(parse_text(text.decode()))) == EXPECTED


def test_openmetrics_has_the_same_names() -> None:
    text, content_type = metrics_of(FakeEngine()).exposition("application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert content_type.startswith("application/openmetrics-text")
    families = parse_openmetrics(text.decode())  # type: ignore[no-untyped-call]  # the library has no types here
    assert shape(list(families)) == EXPECTED
    assert "infer:num_requests_running{" in text.decode()


def test_every_metric_says_what_it_is_and_no_series_says_when_it_began() -> None:
    text = metrics_of(FakeEngine()).exposition("")[0].decode()
    assert all(family.documentation for family in parse_text(text))
    assert "_created" not in text


def test_inter_token_latency_is_told_from_one_millisecond() -> None:
    samples = metric_samples(metrics_of(FakeEngine()).exposition("")[0].decode())
    bounds = [
        float(dict(labels)["le"]) for name, labels in samples if name == "infer:inter_token_latency_seconds_bucket"
    ]
    assert min(bounds) == 0.001


def test_process_is_measured_too() -> None:
    samples = metric_samples(metrics_of(FakeEngine()).exposition("")[0].decode())
    assert all(
        samples[name, frozenset()] > 0
        for name in ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds")
    )


def test_engines_numbers_are_those_of_the_moment() -> None:
    engine = FakeEngine()
    metrics = ServerMetrics(engine, served_model="some/model")
    engine.stats = EngineStats(
        num_running=3,
        num_waiting=2,
        kv_usage=0.25,
        prefill_tokens_beside_decodes=17,
        num_blocks=32,
        num_free_blocks=24,
        num_idle_blocks=4,
        num_prompt_tokens=100,
        num_cached_tokens=64,
        num_generated_tokens=50,
        num_computed_tokens=90,
        num_preemptions=1,
        steps_by_tokens=[5, 0, 2, *[0] * 13, 1],
    )
    samples = metric_samples(metrics.exposition("")[0].decode())

    def value(stem: str, **labels: str) -> float:
        return samples[f"infer:{stem}", frozenset({"model_name": "some/model", "engine": "0", **labels}.items())]

    assert (value("num_requests_running"), value("num_requests_waiting"), value("kv_cache_usage_perc")) == (3, 2, 0.25)
    assert value("prefill_tokens_beside_decodes") == 17
    assert [value("kv_blocks", state=state) for state in ("held", "cached", "free")] == [8, 4, 20]
    assert (value("prompt_tokens_total"), value("generation_tokens_total")) == (100, 50)
    assert (value("prefix_cache_queries_total"), value("prefix_cache_hits_total")) == (100, 64)
    assert [value("prompt_tokens_by_source_total", source=s) for s in ("local_compute", "local_cache_hit")] == [36, 64]
    assert [value("iteration_tokens_total_bucket", le=le) for le in ("1.0", "4.0", "32768.0", "+Inf")] == [5, 7, 7, 8]
    assert (value("iteration_tokens_total_sum"), value("iteration_tokens_total_count")) == (90, 8)


@pytest.mark.covers("replicas/metrics")
def test_replicas_have_numbers_of_their_own() -> None:
    engine = FakeEngine()
    engine.stats = EngineStats(
        num_replaced=1,
        replicas=[
            EngineStats(num_blocks=8, num_running=2, num_generated_tokens=7),
            EngineStats(num_generated_tokens=5),
        ],
    )
    samples = metric_samples(metrics_of(engine).exposition("")[0].decode())
    labels = {"model_name": "m", "engine": "0"}

    def values(stem: str) -> list[float]:
        return [samples[f"infer:replica_{stem}", frozenset({**labels, "replica": str(i)}.items())] for i in range(2)]

    assert (values("up"), values("num_requests_running")) == ([1, 0], [2, 0])
    assert values("generation_tokens_total") == [7, 5]
    assert samples["infer:replaced_cores_total", frozenset(labels.items())] == 1


def test_an_engine_of_one_core_has_no_replicas() -> None:
    assert b"replica_" not in metrics_of(FakeEngine()).exposition("")[0]


@pytest.mark.parametrize("name", ['a"b\\c\nd', "\udcff", "模型"])
def test_any_model_name_can_be_a_label(name: str) -> None:
    metrics = metrics_of(FakeEngine(), served_model=name)
    for accept in ("", "application/openmetrics-text"):
        assert b"infer:engine_up{" in metrics.exposition(accept)[0]


@pytest.mark.parametrize(
    ("status", "up"),
    [(EngineStatus.READY, 1), (EngineStatus.DRAINING, 1), (EngineStatus.STOPPED, 0), (EngineStatus.DEAD, 0)],
)
def test_engine_is_up_until_it_is_dead_or_stopped(status: EngineStatus, up: int) -> None:
    engine = FakeEngine()
    engine.status = status
    samples = metric_samples(metrics_of(engine).exposition("")[0].decode())
    assert samples["infer:engine_up", frozenset({"model_name": "m", "engine": "0"}.items())] == up


async def scrape(client: httpx.AsyncClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    reply = await client.get("/metrics")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return metric_samples(reply.text)


@pytest.mark.parametrize("status", list(EngineStatus))
async def test_metrics_are_shown_whatever_the_engine_does(status: EngineStatus) -> None:
    engine = FakeEngine()
    engine.status = status
    async with client_of(engine) as client:
        await scrape(client)


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=x", "text/plain; version=; escaping=\u00e9", ",;=", "x" * 5000]
)
async def test_metrics_are_shown_whatever_is_accepted(client: httpx.AsyncClient, accept: str) -> None:
    assert (await client.get("/metrics", headers={b"Accept": accept.encode()})).status_code == 200


async def test_http_requests_are_counted_by_route_however_inventive_clients_are(own_client: httpx.AsyncClient) -> None:
    for path in ("/health", "/health", "/nothing/1", "/nothing/2", "/v1/models/a", "/v1/models/b"):
        await own_client.get(path)
    await own_client.request("BREW", "/health")
    samples = await scrape(own_client)
    counted = {
        tuple(dict(labels)[name] for name in ("handler", "method", "status")): value
        for (name, labels), value in samples.items()
        if name == "http_requests_total"
    }
    assert counted == {
        ("/health", "GET", "200"): 2,
        ("none", "GET", "404"): 2,
        ("/v1/models/{model_id}", "GET", "404"): 2,
        ("none", "other", "405"): 1,
    }


async def test_bytes_and_durations_of_exchanges_are_measured(own_client: httpx.AsyncClient) -> None:
    body = b'{"prompt": "x"}'
    reply = await own_client.post("/v1/completions", content=body)
    samples = await scrape(own_client)
    handler = frozenset({("handler", "/v1/completions")})
    assert samples["http_request_size_bytes_sum", handler] == len(body)
    assert samples["http_response_size_bytes_sum", handler] == len(reply.content)
    assert samples["http_request_duration_seconds_count", handler | {("method", "POST")}] == 1
    assert samples["http_request_duration_highr_seconds_count", frozenset()] == 1


async def test_applications_in_one_process_measure_apart() -> None:
    async with client_of(FakeEngine()) as one, client_of(FakeEngine()) as other:
        await one.post("/v1/completions", json={"prompt": "x"})
        ended = (
            "infer:request_success_total",
            frozenset({("model_name", "fake-model"), ("engine", "0"), ("finished_reason", "eos")}),
        )
        assert [(await scrape(client))[ended] for client in (one, other)] == [1, 0]


async def test_metrics_are_shown_while_requests_stream() -> None:
    engine = FakeEngine(Script(pause_after=2))
    async with (
        running_server(engine) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as reply,
    ):
        chunks = reply.aiter_bytes()
        await anext(chunks)
        text = (await client.get("/metrics")).text
        engine.resume()
        async for _ in chunks:
            pass
    assert 'infer:time_to_first_token_seconds_count{engine="0",model_name="fake-model"} 1.0' in text
    assert 'finished_reason="eos",model_name="fake-model"} 0.0' in text
