"""What is built for Ray Serve: options that the deployments get, and what has no meaning on a cluster."""

from typing import Any

import pytest
from ray import serve

from infer_engine.protocol import EngineConfig
from infer_ray import ClusterOptions
from infer_ray.application import application, build_application
from infer_server import ServerSettings

pytestmark = pytest.mark.usefixtures("resources")


def deployments(
    config: EngineConfig | None = None,
    settings: ServerSettings | None = None,
    cluster: ClusterOptions | None = None,
) -> tuple[serve.Deployment, serve.Deployment]:
    """Return the deployments of the ingresses and of the replicas."""
    built = build_application(config or EngineConfig(), settings or ServerSettings(), cluster or ClusterOptions())
    ingress = built._bound_deployment  # noqa: SLF001 - Ray has no other way to look at one
    replicas = next(each for each in ingress.init_args if isinstance(each, serve.Application))
    return ingress, replicas._bound_deployment  # noqa: SLF001


def reserved(deployment: serve.Deployment) -> tuple[float, float]:
    """Return the processors and the GPUs that each replica reserves."""
    options = deployment.ray_actor_options
    assert options is not None
    return options["num_cpus"], options.get("num_gpus", 0)


def test_a_fixed_number_of_replicas_with_what_each_needs() -> None:
    ingress, replicas = deployments(cluster=ClusterOptions(replicas=3, ingresses=2, num_cpus=2))
    assert (ingress.num_replicas, replicas.num_replicas) == (2, 3)
    assert reserved(replicas) == (2, 0)
    assert reserved(ingress) == (0, 0)


def test_no_limit_of_ray_is_below_those_of_the_engine() -> None:
    for deployment in deployments():
        assert deployment.max_ongoing_requests > 10 * EngineConfig().max_waiting_requests
        assert deployment.max_queued_requests == -1


def test_replicas_that_are_taken_away_have_as_long_as_a_drain() -> None:
    for deployment in deployments(settings=ServerSettings(shutdown_timeout=7)):
        assert deployment._deployment_config.graceful_shutdown_timeout_s == 7  # noqa: SLF001


@pytest.mark.covers("replicas/ray-autoscaling")
def test_autoscaling_counts_requests_and_not_the_streams_of_ingresses() -> None:
    options = ClusterOptions(replicas=2, max_replicas=5, ingresses=3, upscale_delay=1, downscale_delay=2)
    _, replicas = deployments(EngineConfig(max_batch_size=10), cluster=options)
    scaling = replicas._deployment_config.autoscaling_config  # noqa: SLF001
    assert scaling is not None
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert scaling.get_target_ongoing_requests() == pytest.approx(7 + 3)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (1, 2)


@pytest.mark.parametrize(
    ("device", "num_gpus", "gpus_there", "expected"),
    [("auto", None, 0, 0), ("auto", None, 4, 1), ("cpu", None, 4, 0), ("cuda", None, 0, 1), ("auto", 0.5, 0, 0.5)],
)
def test_replicas_reserve_a_gpu_if_they_compute_on_one(
    resources: dict[str, float], device: str, num_gpus: float | None, gpus_there: int, expected: float
) -> None:
    resources["GPU"] = gpus_there
    _, replicas = deployments(EngineConfig(device=device), cluster=ClusterOptions(num_gpus=num_gpus))
    assert reserved(replicas) == (1, expected)


@pytest.mark.covers("replicas/ranks-on-ray")
@pytest.mark.parametrize(("device", "gpus_there", "expected"), [("auto", 8, 4), ("auto", 0, 0), ("cpu", 8, 0)])
def test_replicas_reserve_a_gpu_for_each_rank(
    resources: dict[str, float], device: str, gpus_there: int, expected: float
) -> None:
    resources["GPU"] = gpus_there
    _, replicas = deployments(EngineConfig(device=device, tensor_parallel_size=4))
    assert reserved(replicas) == (1, expected)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"config": EngineConfig(data_parallel_size=2)}, "`data_parallel_size` is 2; on a cluster set `replicas`"),
    (
        {"config": EngineConfig(tensor_parallel_size=4), "cluster": ClusterOptions(num_gpus=2)},
        "`num_gpus` is 2 but `tensor_parallel_size` is 4",
    ),
    ({"settings": ServerSettings(uds="a.sock")}, "`uds` is 'a.sock'; on a cluster Ray Serve has the connections"),
    ({"settings": ServerSettings(engine_process=False)}, "`engine_process` is False"),
    ({"settings": ServerSettings(receive_timeout=1)}, "`receive_timeout` is 1"),
    ({"settings": ServerSettings(write_timeout=1)}, "`write_timeout` is 1"),
    ({"settings": ServerSettings(max_connections=1)}, "`max_connections` is 1"),
]


@pytest.mark.parametrize(("arguments", "message"), UNSUPPORTED)
def test_what_has_no_meaning_on_a_cluster_is_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        deployments(**arguments)


def test_arguments_of_a_file_are_those_of_the_command() -> None:
    built = application({"engine": {"max_batch_size": 4}, "server": {"api_key": ["k"]}, "cluster": {"replicas": 2}})
    ingress = built._bound_deployment  # noqa: SLF001
    config, settings, _ = list(ingress.init_args)
    assert (config["max_batch_size"], list(settings["api_key"])) == (4, ["k"])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"egnine": {}}, "egnine"),
    ({"engine": {"max_batch": 4}}, "`engine` has no `max_batch`; it may have `model`"),
    ({"server": {"prot": 4}}, "`server` has no `prot`"),
    ({"cluster": {"replica": 4}}, "`cluster` has no `replica`; it may have `replicas`"),
    ({"engine": {"max_batch_size": "four"}}, r"`engine`: .*max_batch_size"),
    ({"engine": {"max_batch_size": 0}}, "max_batch_size"),
    ({"cluster": {"replicas": 0}}, "`replicas` is 0"),
    ({"cluster": []}, "cluster"),
]


@pytest.mark.covers("replicas/ray-application")
@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_arguments_of_a_file_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        application(arguments)
