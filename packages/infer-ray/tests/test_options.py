"""Options of a cluster: defaults, and every value that is refused."""

from typing import Any

import pytest

from infer_ray import ClusterOptions

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replicas": 0}, r"`replicas` is 0; it must be in \[1, 10000\]"),
    ({"replicas": 10_001}, "`replicas` is 10001"),
    ({"ingresses": 0}, "`ingresses` is 0"),
    ({"replicas": 3, "max_replicas": 2}, "`max_replicas` is 2; it must be at least `replicas`, 3"),
    ({"max_replicas": 10_001}, "`max_replicas` is 10001"),
    ({"max_replicas": 2, "target_ongoing_requests": 0}, "`target_ongoing_requests` is 0"),
    ({"max_replicas": 2, "target_ongoing_requests": float("nan")}, "`target_ongoing_requests` is nan"),
    ({"target_ongoing_requests": 5}, "nothing scales: set `max_replicas`"),
    ({"upscale_delay": -1}, "`upscale_delay` is -1"),
    ({"downscale_delay": float("inf")}, "`downscale_delay` is inf"),
    ({"num_cpus": 0}, "`num_cpus` is 0"),
    ({"num_gpus": -1}, "`num_gpus` is -1"),
    ({"name": " "}, "`name` is ' '"),
    ({"name": "a#b"}, "`name` is 'a#b'; it must be a name without `#`"),
    ({"route_prefix": "v2"}, "`route_prefix` is 'v2'; it must be a path that begins with `/`"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_values_that_are_not_allowed_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterOptions(**fields)


def test_ends_of_what_is_allowed_are_taken() -> None:
    for replicas in (1, 10_000):
        ClusterOptions(replicas=replicas, max_replicas=replicas, ingresses=replicas)
    ClusterOptions(upscale_delay=0, downscale_delay=0, num_gpus=0, num_cpus=0.1, route_prefix="/")


def test_autoscaling_aims_at_a_share_of_the_batch() -> None:
    assert ClusterOptions().target(max_batch_size=100, has_gpu=True) == pytest.approx(70)
    assert ClusterOptions().target(max_batch_size=None, has_gpu=True) == pytest.approx(0.7 * 256)
    assert ClusterOptions().target(max_batch_size=None, has_gpu=False) == pytest.approx(0.7 * 32)
    assert ClusterOptions(max_replicas=2, target_ongoing_requests=3).target(max_batch_size=9, has_gpu=False) == 3
