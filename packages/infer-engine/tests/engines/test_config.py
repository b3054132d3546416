"""Every invalid value and every conflict is refused; the message names the field, the value and what is allowed."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine import EngineConfig

NAN, INF = float("nan"), float("inf")
COUNTS = ["max_seq_len", "max_batch_size", "max_num_batched_tokens", "max_waiting_requests", "block_size"]
COUNTS += ["num_kv_blocks", "num_gpu_blocks", "prefill_chunk_size", "max_prefill_chunks_per_step"]
FRACTIONS = ["gpu_memory_utilization", "kv_reserve", "batch_wait_timeout_s", "step_timeout_s"]
NGRAM = '{"method": "ngram"}'
SWITCHES = ["use_chunked_prefill", "use_prefix_caching", "use_async_scheduling", "use_cuda_graphs", "use_cpu_graphs"]
SWITCHES += ["use_fused_products", "batch_invariant"]
WORDS = [
    *("dtype", "device", "load_format", "batching_mode", "scheduler_policy", "kv_cache_backend"),
    *("tool_call_format", "reasoning_format"),
]


def config_of(**values: Any) -> EngineConfig:
    """Return the configuration of values of any type, as they come from JSON or a shell."""
    return EngineConfig(**values)


def refusal_of(**values: Any) -> str:
    with pytest.raises(ValueError, match=r"^`\w+` is .*\.$") as raised:
        config_of(**values)
    return str(raised.value)


@pytest.mark.covers("configuration/invalid-value", "configuration/dtype")
@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("dtype", "int8", "`bfloat16`"),
        ("device", "tpu", "`cuda:N`"),
        ("device", "cuda:x", "`cuda:N`"),
        ("load_format", "pickle", "`dummy`"),
        ("model", " ", "a folder, a GGUF file or a Hub id"),
        ("model", b"folder", "a folder, a GGUF file or a Hub id"),
        ("seed", 2**63, "64-bit"),
        ("seed", 1.0, "64-bit"),
        ("seed", "1", "64-bit"),
        ("seed", True, "64-bit"),
        ("batching_mode", "dynamic", "`static`, `continuous`"),
        ("scheduler_policy", "lifo", "`fcfs`, `prefill_first`, `decode_round_robin`, `priority`"),
        ("kv_cache_backend", "sparse", "`auto`, `contiguous`, `paged`"),
        ("gpu_memory_utilization", 0.0, "in (0, 1]"),
        ("gpu_memory_utilization", 1.01, "in (0, 1]"),
        ("kv_reserve", 1.0, "in [0, 1)"),
        ("kv_reserve", -0.1, "in [0, 1)"),
        ("batch_wait_timeout_s", -0.01, "at least 0"),
        ("batch_wait_timeout_s", 1e300, "at most 31536000"),
        ("max_decode_slowdown", 1, "above 1 and at most 1000"),
        ("max_decode_slowdown", 1000.5, "above 1 and at most 1000"),
        ("max_decode_slowdown", NAN, "above 1"),
        ("max_decode_slowdown", True, "a number"),
        ("step_timeout_s", 0, "above 0"),
        ("step_timeout_s", 10**400, "at most 31536000"),
        ("kv_cache_memory", "4 bananas", "`4GiB`"),
        ("kv_cache_memory", 0, "`4GiB`"),
        ("kv_cache_memory", -5, "`4GiB`"),
        ("kv_cache_memory", 1.5, "`4GiB`"),
        ("kv_cache_memory", True, "`4GiB`"),
        ("kv_cache_memory", "0.1B", "`4GiB`"),
        ("kv_cache_memory", "9" * 1000, "`4GiB`"),
    ],
)
def test_an_invalid_value_is_refused_by_name(field: str, value: object, allowed: str) -> None:
    message = refusal_of(**{field: value})
    assert message.startswith(f"`{field}` is {value!r}; it must be ")
    assert allowed in message


@pytest.mark.covers("configuration/invalid-value")
@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [0, -1, True, 1.0, NAN, INF, "5", "", [5], b"5"])
def test_a_count_is_a_whole_number_of_at_least_1(field: str, value: object) -> None:
    assert refusal_of(**{field: value}) == f"`{field}` is {value!r}; it must be a whole number of at least 1."


@pytest.mark.covers("configuration/invalid-value")
@pytest.mark.parametrize("field", FRACTIONS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, True, "0.5", None, [0.5], 10**400])
def test_a_fraction_or_a_time_is_a_finite_number(field: str, value: object) -> None:
    assert f"`{field}` is {value!r}" in refusal_of(**{field: value})


@pytest.mark.covers("configuration/invalid-value")
@pytest.mark.parametrize("field", SWITCHES)
@pytest.mark.parametrize("value", [1, 0, "true", "auto", 1.0])
def test_a_switch_is_true_or_false(field: str, value: object) -> None:
    assert refusal_of(**{field: value}) == f"`{field}` is {value!r}; it must be True or False."


@pytest.mark.parametrize("field", WORDS)
@pytest.mark.parametrize("value", [None, 1, ["auto"], True])
def test_a_word_of_another_type_is_refused(field: str, value: object) -> None:
    assert f"`{field}` is {value!r}" in refusal_of(**{field: value})


@pytest.mark.covers("configuration/device")
@pytest.mark.parametrize(
    "values",
    [
        {"max_seq_len": 1, "max_batch_size": 1, "block_size": 1, "num_kv_blocks": 1},
        {"gpu_memory_utilization": 1, "kv_reserve": 0, "step_timeout_s": 1},
        {"seed": -(2**63), "device": "cuda:3", "model": "owner/name\nof two lines"},
        {"batching_mode": "static", "batch_wait_timeout_s": 0},
        {"batching_mode": "static", "max_prefill_chunks_per_step": 1},
    ],
)
def test_values_at_the_edge_of_what_is_allowed_are_taken(values: dict[str, Any]) -> None:
    config = config_of(**values)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.covers("configuration/kv-cache-memory")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 * 2**30),
        ("1.5 MB", 1_500_000),
        (1024, 1024),
        ("512mib", 512 * 2**20),
        ("9007199254740993", 2**53 + 1),
        (2**80 + 1, 2**80 + 1),
    ],
)
def test_memory_takes_units_and_loses_no_byte(text: int | str, expected: int) -> None:
    assert EngineConfig(kv_cache_memory=text).kv_cache_bytes == expected


STATIC, CONTIGUOUS, WHOLE = (
    {"batching_mode": "static"},
    {"kv_cache_backend": "contiguous"},
    {"use_chunked_prefill": False},
)


@pytest.mark.covers(
    "configuration/conflict",
    "configuration/scheduler-policy",
    "configuration/kv-cache-backend",
    "configuration/num-gpu-blocks",
    "configuration/use-chunked-prefill",
    "configuration/use-prefix-caching",
)
@pytest.mark.parametrize(
    ("field", "value", "other", "way_out"),
    [
        ("scheduler_policy", "prefill_first", STATIC, "set `batching_mode` to `continuous`"),
        ("scheduler_policy", "decode_round_robin", STATIC, "leave `scheduler_policy` out"),
        ("scheduler_policy", "priority", STATIC, "leave `scheduler_policy` out"),
        ("kv_cache_backend", "paged", STATIC, "leave `kv_cache_backend` out"),
        ("use_chunked_prefill", True, STATIC, "leave `use_chunked_prefill` out"),
        ("use_prefix_caching", True, STATIC, "leave `use_prefix_caching` out"),
        ("prefill_chunk_size", 64, STATIC, "leave one of them out"),
        ("batch_wait_timeout_s", 0.1, {"batching_mode": "continuous"}, "set `batching_mode` to `static`"),
        ("use_prefix_caching", True, CONTIGUOUS, "set `kv_cache_backend` to `paged`"),
        ("use_prefix_caching", True, WHOLE, "leave one of them out"),
        ("prefill_chunk_size", 64, WHOLE, "leave one of them out"),
        ("prefill_chunk_size", 600, {"max_num_batched_tokens": 64}, "lower the one or raise the other"),
        ("num_kv_blocks", 5, {"kv_cache_memory": "1GiB"}, "leave one of them out"),
        ("num_gpu_blocks", 5, {"kv_cache_memory": "1GiB"}, "leave one of them out"),
        ("num_gpu_blocks", 5, {"num_kv_blocks": 6}, "leave one of them out"),
        ("use_cpu_graphs", True, {"device": "cuda"}, "leave `use_cpu_graphs` out"),
        ("use_cpu_graphs", True, {"device": "cuda:1"}, "leave `use_cpu_graphs` out"),
        ("use_cuda_graphs", True, {"device": "cpu"}, "leave `use_cuda_graphs` out"),
        ("use_fused_products", True, {"device": "cpu"}, "leave `use_fused_products` out"),
        ("use_fused_products", True, {"batch_invariant": True}, "leave one of them out"),
        ("use_cpu_graphs", True, {"tensor_parallel_size": 2}, "leave `use_cpu_graphs` out"),
        ("use_async_scheduling", True, {"scheduler_policy": "prefill_first"}, "leave one of them out"),
        ("state_cache_dtype", "bfloat16", {"device": "cpu"}, "leave `state_cache_dtype` out"),
        ("state_cache_dtype", "bfloat16", {"batch_invariant": True}, "leave `state_cache_dtype` out"),
        ("speculative_config", NGRAM, {"batching_mode": "static"}, "set `batching_mode` to `continuous`"),
        ("speculative_config", NGRAM, {"tensor_parallel_size": 4}, "leave it out"),
        ("speculative_model", "a/b", {"tensor_parallel_size": 3}, "leave it out"),
        ("speculative_model", "a/b", {"speculative_config": NGRAM}, "leave one of them out"),
        ("max_decode_slowdown", 2.0, {"max_prefill_tokens_beside_decodes": 48}, "leave one of them out"),
    ],
)
def test_a_conflict_names_both_fields_their_values_and_the_way_out(
    field: str, value: object, other: dict[str, object], way_out: str
) -> None:
    ((other_field, other_value),) = other.items()
    message = refusal_of(**{field: value}, **other)
    assert message.startswith(f"`{field}` is {value!r} but `{other_field}` is {other_value!r} ")
    assert way_out in message


@pytest.mark.covers("configuration/num-gpu-blocks")
def test_num_gpu_blocks_is_another_name_of_num_kv_blocks() -> None:
    config = EngineConfig(num_gpu_blocks=5)
    assert config.num_kv_blocks == 5
    assert config == EngineConfig(num_kv_blocks=5) == EngineConfig(num_kv_blocks=5, num_gpu_blocks=5)
    assert EngineConfig(num_kv_blocks=5) != EngineConfig(num_kv_blocks=6)
    assert replace(config, max_seq_len=64).num_kv_blocks == 5


def resolved(**values: Any) -> tuple[str, bool, bool]:
    config = config_of(**values)
    return config.resolved_kv_cache_backend, config.chunks_prefill, config.caches_prefixes


@pytest.mark.covers(
    "configuration/auto",
    "configuration/batching-mode",
    "configuration/kv-cache-backend",
    "configuration/use-chunked-prefill",
    "configuration/use-prefix-caching",
)
def test_auto_is_on_where_the_other_choices_allow_it() -> None:
    assert resolved() == ("paged", True, True)
    assert resolved(**STATIC) == ("contiguous", False, False)
    assert resolved(**CONTIGUOUS) == ("contiguous", True, False)
    assert resolved(**WHOLE) == ("paged", False, False)


@pytest.mark.covers("configuration/use-async-scheduling")
@pytest.mark.parametrize(
    ("values", "on_gpu", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"use_async_scheduling": True}, False, True),
        ({"use_async_scheduling": False}, True, False),
        ({"scheduler_policy": "prefill_first"}, True, False),
        ({"tensor_parallel_size": 2}, True, True),
        (STATIC, True, True),
    ],
)
def test_steps_are_scheduled_ahead_on_a_gpu_where_the_other_choices_allow_it(
    values: dict[str, Any], *, on_gpu: bool, expected: bool
) -> None:
    assert config_of(**values).schedules_ahead(on_gpu=on_gpu) is expected


def test_a_switch_turns_off_nothing_but_what_needs_it() -> None:
    assert resolved(use_prefix_caching=False) == ("paged", True, False)
    assert resolved(use_prefix_caching=True, use_chunked_prefill=True, kv_cache_backend="paged") == (
        "paged",
        True,
        True,
    )
    assert resolved(**STATIC, **CONTIGUOUS, **WHOLE, use_prefix_caching=False) == ("contiguous", False, False)


def test_a_default_chunk_size_contradicts_no_smaller_step() -> None:
    assert EngineConfig(max_num_batched_tokens=64).chunks_prefill


@pytest.mark.covers("configuration/contiguous-ignores-blocks")
@pytest.mark.parametrize("choice", [STATIC, CONTIGUOUS])
def test_the_contiguous_cache_ignores_the_size_of_a_pool(choice: dict[str, Any]) -> None:
    assert resolved(**choice, block_size=7, num_kv_blocks=5, kv_cache_memory="1GiB")[0] == "contiguous"


POSSIBLE: dict[str, list[object]] = {
    "batching_mode": ["static", "continuous"],
    "scheduler_policy": ["fcfs", "prefill_first", "decode_round_robin", "priority"],
    "batch_wait_timeout_s": [0.05, 0, 0.2],
    "kv_cache_backend": ["auto", "contiguous", "paged"],
    "block_size": [None, 1, 16],
    "kv_cache_memory": [None, 10**6, "1GiB"],
    "num_kv_blocks": [None, 1, 100],
    "num_gpu_blocks": [None, 1, 100],
    "max_seq_len": [None, 1, 4096],
    "max_num_batched_tokens": [None, 1, 300, 8192],
    "use_chunked_prefill": [None, True, False],
    "prefill_chunk_size": [None, 1, 1000],
    "max_prefill_chunks_per_step": [None, 1, 8],
    "max_prefill_tokens_beside_decodes": [None, 1, 48],
    "max_decode_slowdown": [None, 1.5, 1000],
    "use_prefix_caching": [None, True, False],
    "use_async_scheduling": [None, True, False],
    "speculative_config": [None, "none", NGRAM],
    "speculative_model": [None, "a/b"],
    "use_cuda_graphs": [None, True, False],
    "use_cpu_graphs": [None, True, False],
    "use_fused_products": [None, True, False],
    "device": ["auto", "cpu", "cuda"],
    "batch_invariant": [False, True],
    "step_timeout_s": [300.0, 1],
}
WRONG: list[object] = [NAN, -INF, -1, 0, True, "5", "", "1 GiB", 2.5, None, [1]]


def some_of(values: dict[str, list[object]]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(choices) for name, choices in values.items()})


def attempt(values: dict[str, Any]) -> tuple[EngineConfig | None, str]:
    """Return the configuration, or None and why it is refused."""
    try:
        return config_of(**values), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.covers("configuration/one-object")
@given(some_of(POSSIBLE) | some_of({name: choices + WRONG for name, choices in POSSIBLE.items()}))
def test_any_values_make_a_consistent_configuration_or_a_clear_refusal(values: dict[str, object]) -> None:
    config, refusal = attempt(values)
    if config is None:
        assert re.fullmatch(r"`\w+` is .+ .+\.", refusal)
        return
    static, paged = config.batching_mode == "static", config.resolved_kv_cache_backend == "paged"
    assert not (static and (paged or config.chunks_prefill or config.scheduler_policy != "fcfs"))
    assert not config.caches_prefixes or (paged and config.chunks_prefill)
    assert config.kv_cache_backend in ("auto", config.resolved_kv_cache_backend)
    assert config.use_chunked_prefill in (None, config.chunks_prefill)
    assert config.use_prefix_caching in (None, config.caches_prefixes)


LEFT_TO_THE_ENGINE: dict[str, list[object]] = {
    "batching_mode": ["static", "continuous"],
    "kv_cache_backend": ["auto", "contiguous"],
    "use_chunked_prefill": [None, False],
    "use_prefix_caching": [None, False],
    "use_async_scheduling": [None, False],
    "use_cuda_graphs": [None, False],
    "use_cpu_graphs": [None, False],
    "use_fused_products": [None, False],
    "device": ["auto", "cpu", "cuda"],
    "batch_invariant": [False, True],
    "block_size": [None, 16],
    "max_num_batched_tokens": [None, 1],
}


@pytest.mark.covers("configuration/auto")
@given(some_of(LEFT_TO_THE_ENGINE))
def test_what_is_left_to_the_engine_never_conflicts(values: dict[str, object]) -> None:
    assert attempt(values)[1] == ""
