"""The access log's fields about generation: tokens, times, finish reasons."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from infer_engine.protocol import FinishReason
from infer_server.observability.observed_engine import ObservedStream


def generation_log_fields(streams: Sequence[ObservedStream]) -> dict[str, Any]:
    """Return the fields for the `streams` that answered one HTTP request; none if there are no streams.

    Prompt tokens count once per prompt, for all its choices. Queue time and time to first token are those of the
    fastest sequence.
    """
    if not streams:
        return {}
    first_choices = [stream for stream in streams if stream.is_first_choice]
    completion_tokens = sum(stream.last.num_completion_tokens for stream in streams if stream.last is not None)
    fields: dict[str, Any] = {
        "sequences": len(streams),
        "prompt_tokens": sum(len(stream.prompt_token_ids) for stream in first_choices),
        "cached_tokens": sum(stream.last.num_cached_tokens for stream in first_choices if stream.last is not None),
        "completion_tokens": completion_tokens,
        "finish_reasons": dict(Counter(_finish_reason(stream) for stream in streams)),
    }
    queue_s = [s.times.admitted_s - s.times.arrived_s for s in streams if s.times.admitted_s is not None]
    ttft_s = [s.times.first_token_s - s.times.arrived_s for s in streams if s.times.first_token_s is not None]
    if queue_s:
        fields["queue_ms"] = round(min(queue_s) * 1000, 3)
    if ttft_s:
        fields["ttft_ms"] = round(min(ttft_s) * 1000, 3)
    decode_s = _decode_s(streams)
    if decode_s > 0:
        fields["tokens_per_s"] = round((completion_tokens - len(ttft_s)) / decode_s, 1)
    return fields


def _finish_reason(stream: ObservedStream) -> str:
    """Return the finish reason of a stream, or the code of its failure."""
    if stream.last is None or not stream.last.finished:
        return FinishReason.ABORT
    return stream.last.error.code if stream.last.error else stream.last.finish_reason or FinishReason.ABORT


def _decode_s(streams: Sequence[ObservedStream]) -> float:
    """Return the seconds between the first token of all streams and the last."""
    firsts = [s.times.first_token_s for s in streams if s.times.first_token_s is not None]
    lasts = [s.times.last_token_s for s in streams if s.times.last_token_s is not None]
    return max(lasts) - min(firsts) if firsts and lasts else 0.0
