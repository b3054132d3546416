"""The replicas that the routers of this process know, and who wants to know them.

Ray Serve makes a router for each deployment that a process calls, and copies its class together with the module that
defines it. So what routers share with the rest of the process is here, in a module that exists once.
"""

import threading
from collections.abc import Callable, Mapping

from infer_ray.wire import ReplicaDescription

OnReplicas = Callable[[Mapping[str, ReplicaDescription]], object]

_lock = threading.Lock()
_replicas: dict[str, Mapping[str, ReplicaDescription]] = {}
_callbacks: dict[str, OnReplicas] = {}


def watch_replicas(app_name: str, on_replicas: OnReplicas) -> None:
    """Call `on_replicas` with all replicas of an application, by id, now and after each change, from any thread.

    It replaces the function of an earlier call, and must not block.
    """
    with _lock:
        _callbacks[app_name] = on_replicas
        on_replicas(_replicas.get(app_name, {}))


def report_replicas(app_name: str, replicas: Mapping[str, ReplicaDescription]) -> None:
    """Tell who watches an application which replicas it has."""
    with _lock:
        _replicas[app_name] = replicas
        if app_name in _callbacks:
            _callbacks[app_name](replicas)
