"""`ClusterOptions`: how many replicas there are and what each of them needs, with checks of every value."""

from dataclasses import dataclass

DEFAULT_TARGET_SHARE = 0.7
DEFAULT_BATCH_SIZE_OF_GPU = 256
DEFAULT_BATCH_SIZE_OF_CPU = 32
MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The number of replicas, and what each of them needs.

    Attributes:
        replicas: Replicas of the model; with `max_replicas` the fewest.
        max_replicas: Most replicas; how many there are follows from the number of running requests. Left out: always
            `replicas`.
        target_ongoing_requests: Requests of each replica that autoscaling aims at. Left out: 0.7 times
            `max_batch_size`, or its default.
        upscale_delay: Seconds of more requests than that before replicas are added.
        downscale_delay: Seconds of fewer before replicas are taken away.
        ingresses: Processes for text and HTTP, each of which reaches all replicas.
        num_cpus: Processors that each replica reserves, and threads that it computes with on a CPU.
        num_gpus: GPUs that each replica reserves. Left out: `tensor_parallel_size`, or 0 if `device` is `cpu` or the
            cluster has none.
        name: Name of the application; several of them can share a cluster.
        route_prefix: Path below which the application is served.

    Raises:
        ValueError: a value is not allowed; the message names the field, the value and what is allowed.
    """

    replicas: int = 1
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    ingresses: int = 1
    num_cpus: float = 1.0
    num_gpus: float | None = None
    name: str = "infer"
    route_prefix: str = "/"

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        _check("replicas", self.replicas, 1 <= self.replicas <= MAX_REPLICAS, f"in [1, {MAX_REPLICAS}]")
        _check("ingresses", self.ingresses, 1 <= self.ingresses <= MAX_REPLICAS, f"in [1, {MAX_REPLICAS}]")
        if self.max_replicas is not None:
            allowed = f"at least `replicas`, {self.replicas}, and at most {MAX_REPLICAS}"
            _check("max_replicas", self.max_replicas, self.replicas <= self.max_replicas <= MAX_REPLICAS, allowed)
        if self.target_ongoing_requests is not None:
            target = self.target_ongoing_requests
            _check("target_ongoing_requests", target, 0 < target < float("inf"), "a positive number")
            if self.max_replicas is None:
                raise ValueError(f"`target_ongoing_requests` is {target}, and nothing scales: set `max_replicas`, too.")
        for name in ("upscale_delay", "downscale_delay"):
            value = getattr(self, name)
            _check(name, value, 0 <= value < float("inf"), "a number of seconds of at least 0")
        _check("num_cpus", self.num_cpus, 0 < self.num_cpus < float("inf"), "a positive number")
        if self.num_gpus is not None:
            _check("num_gpus", self.num_gpus, 0 <= self.num_gpus < float("inf"), "a number of at least 0")
        _check("name", self.name, bool(self.name.strip()) and "#" not in self.name, "a name without `#`")
        _check("route_prefix", self.route_prefix, self.route_prefix.startswith("/"), "a path that begins with `/`")

    def target(self, *, max_batch_size: int | None, has_gpu: bool) -> float:
        """Return the requests of each replica that autoscaling aims at."""
        if self.target_ongoing_requests is not None:
            return self.target_ongoing_requests
        default = DEFAULT_BATCH_SIZE_OF_GPU if has_gpu else DEFAULT_BATCH_SIZE_OF_CPU
        return DEFAULT_TARGET_SHARE * (max_batch_size or default)


def _check(name: str, value: object, holds: bool, allowed: str) -> None:  # noqa: FBT001 - a private one-line assertion
    if not holds:
        raise ValueError(f"`{name}` is {value!r}; it must be {allowed}.")
