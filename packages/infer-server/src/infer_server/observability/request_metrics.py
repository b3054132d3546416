"""Metrics of requests to the engine, measured as their outputs pass.

All intervals are in the time of `time.monotonic`: the clock of uvloop goes in milliseconds. The waiting time of a
preempted request is part of its inter-token latency.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from infer_engine.protocol import FinishReason, RequestTimes, SamplingParams, StepOutput

# The bounds of vLLM's metrics, and smaller ones for models that answer in milliseconds.
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL_S = (
    *(0.001, 0.0025, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_LATENCY_S = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
_CHOICES = (1, 2, 5, 10, 20)

FAILURE_CODES = (
    "step_failed",
    "out_of_memory",
    "not_finite",
    "grammar_failed",
    "text_failed",
    "engine_dead",
    "engine_stuck",
    "internal_error",
)


class RequestMetrics:
    """Histograms and counters of requests. Labels are resolved once, so that an observation costs under 1 µs."""

    def __init__(self, registry: CollectorRegistry, *, labels: dict[str, str], max_seq_len: int) -> None:
        """Register in `registry`; no request has more tokens than `max_seq_len`."""

        def histogram(stem: str, documentation: str, bounds: Sequence[float]) -> Histogram:
            family = Histogram(f"infer:{stem}", documentation, list(labels), registry=registry, buckets=bounds)
            return family.labels(**labels)

        def counters(stem: str, documentation: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
            """Create all counters at the start, so that the first event of each shows as an increase."""
            family = Counter(f"infer:{stem}", documentation, [*labels, label], registry=registry)
            return {value: family.labels(**labels, **{label: value}) for value in values}

        def seconds(stem: str, documentation: str) -> Histogram:
            return histogram(stem, documentation, _LATENCY_S)

        def tokens(stem: str, documentation: str) -> Histogram:
            return histogram(stem, documentation, _one_two_five(max_seq_len))

        self._first_token = histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT_S)
        self.observe_inter_token_s = histogram(
            "inter_token_latency_seconds", "From one token to the next.", _ITL_S
        ).observe
        self._queue = seconds("request_queue_time_seconds", "From arrival to leaving the queue for the first time.")
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean inter-token latency of a request.", _ITL_S
        )
        self._latency = seconds("e2e_request_latency_seconds", "From arrival to the last token.")
        self._inference = seconds("request_inference_time_seconds", "From leaving the queue to the last token.")
        self._prefill = seconds("request_prefill_time_seconds", "From leaving the queue to the first token.")
        self._decode = seconds("request_decode_time_seconds", "From the first token to the last.")
        self._prompt_tokens = tokens("request_prompt_tokens", "Prompt tokens.")
        self._generation_tokens = tokens("request_generation_tokens", "Generated tokens.")
        self._most_tokens = tokens(
            "request_max_num_generation_tokens", "Generated tokens of a prompt's longest choice."
        )
        self._computed_tokens = tokens("request_prefill_kv_computed_tokens", "Prompt tokens that were not cached.")
        self._max_tokens = tokens("request_params_max_tokens", "`max_tokens` of requests that set it.")
        self._choices = histogram("request_params_n", "`n` of requests.", _CHOICES)
        reasons = [reason.value for reason in FinishReason]
        self._ended = counters("request_success", "Requests that ended, by finish reason.", "finished_reason", reasons)
        self._failed = counters("request_failure", "Requests that failed, by error code.", "code", FAILURE_CODES)

    def record_accepted(self, params: SamplingParams) -> None:
        """Count an accepted request, and observe its parameters."""
        self._choices.observe(params.n)
        if params.max_tokens is not None:
            self._max_tokens.observe(params.max_tokens)

    def record_first_token(self, times: RequestTimes) -> None:
        """Measure the first token of a sequence."""
        if times.first_token_s is not None:
            self._first_token.observe(times.first_token_s - times.arrived_s)
        if times.admitted_s is not None:
            self._queue.observe(times.admitted_s - times.arrived_s)

    def record_abort(self) -> None:
        """Count an aborted sequence; its times are not measured."""
        self._ended[FinishReason.ABORT].inc()

    def record_failure(self, code: str) -> None:
        """Count a sequence that failed."""
        self._failed[code if code in self._failed else "internal_error"].inc()

    def record_finish(self, reason: FinishReason, last: StepOutput, times: RequestTimes) -> None:
        """Count and measure a finished sequence."""
        self._ended[reason].inc()
        self._prompt_tokens.observe(last.num_prompt_tokens)
        self._generation_tokens.observe(last.num_completion_tokens)
        self._computed_tokens.observe(last.num_prompt_tokens - last.num_cached_tokens)
        if times.first_token_s is None or times.last_token_s is None:
            return
        decode_s = times.last_token_s - times.first_token_s
        self._latency.observe(times.last_token_s - times.arrived_s)
        self._decode.observe(decode_s)
        if last.num_completion_tokens > 1:
            self._per_token.observe(decode_s / (last.num_completion_tokens - 1))
        if times.admitted_s is not None:
            self._prefill.observe(times.first_token_s - times.admitted_s)
            self._inference.observe(times.last_token_s - times.admitted_s)

    def record_choices_finished(self, most_tokens: int) -> None:
        """Measure a prompt whose choices have all ended; the longest one has `most_tokens` tokens."""
        self._most_tokens.observe(most_tokens)


def _one_two_five(maximum: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `maximum`."""
    bounds = (digit * 10**power for power in range(len(str(maximum))) for digit in (1, 2, 5))
    return [bound for bound in bounds if bound <= maximum]
