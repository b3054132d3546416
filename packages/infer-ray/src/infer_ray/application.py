"""`application`: what `infer-ray serve`, `serve run infer_ray:application` and a YAML file's `import_path` build."""

import dataclasses
from typing import Any, TypeVar

import msgspec
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from infer_engine.protocol import EngineConfig
from infer_ray.addressing import AddressedRouter
from infer_ray.ingress import Ingress
from infer_ray.options import ClusterOptions
from infer_ray.replica import CoreReplica
from infer_server import ServerSettings

MAX_ONGOING_CALLS = 1_000_000
"""Calls that a replica takes at once. The queue has a limit of its own, `max_waiting_requests`."""
HEALTH_CHECK_PERIOD_S = 2.0
HEALTH_CHECK_TIMEOUT_S = 10.0

_Kind = TypeVar("_Kind", EngineConfig, ServerSettings, ClusterOptions)
_OF_THE_LISTENER = (
    "uds",
    "engine_process",
    "receive_timeout",
    "write_timeout",
    "timeout_keep_alive",
    "max_connections",
    "shutdown_delay",
)


class ApplicationArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `application` in a YAML file, all optional.

    Attributes:
        engine: fields of `EngineConfig`.
        server: fields of `ServerSettings`.
        cluster: fields of `ClusterOptions`.
    """

    engine: dict[str, Any] = {}
    server: dict[str, Any] = {}
    cluster: dict[str, Any] = {}


def application(arguments: dict[str, Any]) -> serve.Application:
    """Return the application that a YAML file's `args` describe; see `ApplicationArguments`.

    Raises:
        ValueError: a field is unknown, or a value is not allowed.
    """
    parsed = msgspec.convert(arguments, ApplicationArguments)
    return build_application(
        _parsed("engine", parsed.engine, EngineConfig),
        _parsed("server", parsed.server, ServerSettings),
        _parsed("cluster", parsed.cluster, ClusterOptions),
    )


def build_application(config: EngineConfig, settings: ServerSettings, cluster: ClusterOptions) -> serve.Application:
    """Return the application: ingresses over replicas. Ray must be connected to the cluster.

    Raises:
        ValueError: the configuration asks for what replicas on a cluster do not have.
    """
    check_supported(config, settings)
    num_gpus = num_gpus_of(config, cluster)
    common: dict[str, Any] = {
        "max_ongoing_requests": MAX_ONGOING_CALLS,
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
        "graceful_shutdown_timeout_s": settings.shutdown_timeout,
        "logging_config": LoggingConfig(enable_access_log=False),  # the server has its own, of requests, not of calls
    }
    replicas = serve.deployment(
        **common,
        **_number_of_replicas(config, cluster, has_gpu=num_gpus > 0),
        ray_actor_options={"num_cpus": cluster.num_cpus, "num_gpus": num_gpus},
        request_router_config={"request_router_class": AddressedRouter},
    )(CoreReplica)
    ingress = serve.deployment(**common, num_replicas=cluster.ingresses, ray_actor_options={"num_cpus": 0})(Ingress)
    fields = msgspec.to_builtins(config)
    return ingress.bind(fields, msgspec.to_builtins(settings), replicas.bind(fields))


def check_supported(config: EngineConfig, settings: ServerSettings) -> None:
    """Refuse what has no meaning on a cluster.

    Raises:
        ValueError: a field has a value that is not supported here; the message says what to use.
    """
    if config.data_parallel_size != 1:
        raise ValueError(f"`data_parallel_size` is {config.data_parallel_size}; on a cluster set `replicas`.")
    for name in _OF_THE_LISTENER:
        value = getattr(settings, name)
        if value != getattr(ServerSettings(), name):
            raise ValueError(f"`{name}` is {value!r}; on a cluster Ray Serve has the connections, so leave it out.")


def num_gpus_of(config: EngineConfig, cluster: ClusterOptions) -> float:
    """Return the GPUs that each replica reserves, all on one machine: by default one for each rank.

    Raises:
        ValueError: a replica would have fewer GPUs than ranks.
    """
    num_ranks = config.tensor_parallel_size
    if cluster.num_gpus is not None:
        if num_ranks > 1 and 0 < cluster.num_gpus < num_ranks:
            raise ValueError(
                f"`num_gpus` is {cluster.num_gpus} but `tensor_parallel_size` is {num_ranks} and each rank needs a GPU "
                "of its own; leave `num_gpus` out."
            )
        return cluster.num_gpus
    if config.device == "cpu":
        return 0
    return num_ranks if config.device.startswith("cuda") or ray.cluster_resources().get("GPU", 0) else 0


def _number_of_replicas(config: EngineConfig, cluster: ClusterOptions, *, has_gpu: bool) -> dict[str, Any]:
    if cluster.max_replicas is None:
        return {"num_replicas": cluster.replicas}
    target = cluster.target(max_batch_size=config.max_batch_size, has_gpu=has_gpu)
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=cluster.replicas,
            max_replicas=cluster.max_replicas,
            target_ongoing_requests=target + cluster.ingresses,  # each of them has a stream open all the time
            upscale_delay_s=cluster.upscale_delay,
            downscale_delay_s=cluster.downscale_delay,
        )
    }


def _parsed(part: str, fields: dict[str, Any], kind: type[_Kind]) -> _Kind:
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise ValueError(f"`{part}` has no `{unknown[0]}`; it may have {', '.join(f'`{name}`' for name in known)}.")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"`{part}`: {error}") from error
