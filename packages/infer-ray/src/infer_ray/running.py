"""Runs the application on a cluster until somebody interrupts it."""

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import msgspec
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions

from infer_engine.protocol import EngineConfig, EngineInfo, EngineStartError
from infer_ray.application import build_application, check_supported, num_gpus_of
from infer_ray.options import ClusterOptions
from infer_ray.replica import CoreReplica
from infer_ray.wire import decode_description
from infer_server import ServerSettings
from infer_server.banner import banner
from infer_server.command import EXIT_INTERRUPTED, print_if_possible
from infer_server.connections.listener import Address, bind_listeners, url_of

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100_000_000
"""Room for large objects in a cluster of this machine alone; tokens are none."""
CONNECT_TIMEOUT_S = 5.0


def run_until_interrupted(
    config: EngineConfig, settings: ServerSettings, cluster: ClusterOptions, *, address: str | None
) -> int:
    """Run the application until SIGINT or SIGTERM, and return the exit code.

    Running requests then have `shutdown_timeout` seconds to finish.

    Args:
        config: configuration of each replica.
        settings: settings of the server.
        cluster: how many replicas there are.
        address: cluster to run on; None starts one on this machine.

    Raises:
        AddressUnusableError: a cluster of this machine cannot listen where it should.
        EngineStartError: the cluster cannot be reached or is too small, or the application does not start.
        ValueError: a value is not supported on a cluster.
    """
    check_supported(config, settings)
    url, port = _where(settings, address)
    url += cluster.route_prefix.rstrip("/")
    try:
        with _connected(address), _terminated_as_interrupted():
            _check_room(config, cluster, can_grow=address is not None)
            serve.start(http_options=_http_options(settings, port))
            try:
                info = _deploy(config, settings, cluster)
                print_if_possible(banner(info, address=Address(text=url, curl=url), settings=settings))
                while True:
                    signal.pause()
            except KeyboardInterrupt:
                logger.info("The application ends; requests have %g s to finish.", settings.shutdown_timeout)
            finally:
                serve.delete(cluster.name)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _where(settings: ServerSettings, address: str | None) -> tuple[str, int]:
    """Return the URL and the port of Ray Serve; on a cluster of this machine alone the port is free."""
    scheme = "https" if settings.ssl_certfile else "http"
    if address is not None:
        return f"{scheme}://{settings.host}:{settings.port}", settings.port
    with ExitStack() as opened:
        listener, *_ = [opened.enter_context(each) for each in bind_listeners(settings.host, settings.port)]
        return url_of(listener, scheme=scheme), listener.getsockname()[1]


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
        else:
            _try_to_connect(address)
            ray.init(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine cannot start" if address is None else f"`{address}` cannot be reached"
        raise EngineStartError(f"The Ray cluster {where}: {error}") from error
    try:
        yield
    finally:
        if address is None:
            serve.shutdown()
        ray.shutdown()


def _try_to_connect(address: str) -> None:
    """Raise an error if nobody listens at `HOST:PORT`, where Ray would try for minutes; others are Ray's to find."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM be what SIGINT is."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _http_options(settings: ServerSettings, port: int) -> HTTPOptions:
    return HTTPOptions(
        host=settings.host,
        port=port,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_keyfile_password=settings.ssl_keyfile_password,
    )


def _check_room(config: EngineConfig, cluster: ClusterOptions, *, can_grow: bool) -> None:
    """Refuse replicas for which a cluster has no room; one that can grow gets time to do so.

    Raises:
        EngineStartError: there is no room.
    """
    for kind, each, flag in (("CPU", cluster.num_cpus, "num-cpus"), ("GPU", num_gpus_of(config, cluster), "num-gpus")):
        needed, there = each * cluster.replicas, ray.cluster_resources().get(kind, 0.0)
        if needed <= there:
            continue
        text = f"{cluster.replicas} replicas with {each:g} {kind}s each need {needed:g}, and the cluster has {there:g}"
        if not can_grow:
            raise EngineStartError(f"{text}; lower `--replicas` or `--{flag}`.")
        logger.warning("%s; the others wait until it has more.", text)


def _deploy(config: EngineConfig, settings: ServerSettings, cluster: ClusterOptions) -> EngineInfo:
    """Start the application, and return what its replicas have loaded.

    Raises:
        EngineStartError: it does not start.
    """
    application = build_application(config, settings, cluster)
    try:
        serve.run(application, name=cluster.name, route_prefix=cluster.route_prefix)
        replicas = serve.get_deployment_handle(CoreReplica.__name__, app_name=cluster.name)
        info = decode_description(replicas.describe.remote(None).result()).info
    except (RuntimeError, RayError) as error:
        raise EngineStartError(f"The application does not start: {error}") from error
    return msgspec.structs.replace(info, num_replicas=cluster.replicas)
