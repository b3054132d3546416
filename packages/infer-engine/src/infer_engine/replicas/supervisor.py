"""`Supervisor`: finds cores that are stuck, and starts others in the places of those that are lost."""

import logging
import threading
import time
from collections.abc import Callable

from infer_engine.ipc.core_client import CoreClient
from infer_engine.processes.watchdog import CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S
from infer_engine.protocol import EngineStats

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 15.0
STABLE_S = 30.0
"""A core that lived as long is replaced at once."""
MAX_FAILED_STARTS = 5
"""Failed starts in a row after which a replica is hopeless, if no other one is left."""

StartCore = Callable[[int], tuple[CoreClient, EngineStats]]
"""Loads a core for a replica; returns its client, and its statistics before its first step."""


class Supervisor:
    """Watches the cores of replicas in a thread; replaces lost ones in a thread each, with growing delays."""

    def __init__(
        self,
        start_core: StartCore,
        *,
        step_timeout_s: float,
        on_started: Callable[[int, CoreClient, EngineStats], bool],
        on_hopeless: Callable[[int], None],
    ) -> None:
        """Start cores with `start_core`.

        Args:
            start_core: loads a core for a replica.
            step_timeout_s: seconds that a step may take.
            on_started: takes the new core of a replica; returns whether it is wanted.
            on_hopeless: called each time that a core has failed to start, from the `MAX_FAILED_STARTS`-th on.
        """
        self._start_core = start_core
        self._step_timeout_s = step_timeout_s
        self._on_started = on_started
        self._on_hopeless = on_hopeless
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[CoreClient, float]] = {}  # with the time since when
        self._num_failures: dict[int, int] = {}
        self._watcher: threading.Thread | None = None

    def watch(self, index: int, client: CoreClient) -> None:
        """Watch the core of a replica."""
        with self._lock:
            self._watched[index] = (client, time.monotonic())
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="infer-replica-watcher", daemon=True)
                self._watcher.start()

    def replace(self, index: int) -> None:
        """Start another core for a replica whose core is lost."""
        with self._lock:
            _, since_s = self._watched.pop(index)
            is_stable = time.monotonic() - since_s >= STABLE_S
            self._num_failures[index] = 0 if is_stable else self._num_failures.get(index, -1) + 1
        threading.Thread(target=self._replace, args=(index,), name=f"infer-replica-{index}", daemon=True).start()

    def stop(self) -> None:
        """Start no more cores."""
        self._stopping.set()

    def _replace(self, index: int) -> None:
        num_failed_starts = 0
        while not self._stopping.wait(self._delay_s(index)):
            try:
                client, stats = self._start_core(index)
            except Exception:
                num_failed_starts += 1
                self._num_failures[index] += 1
                logger.exception("Replica %d cannot start a core.", index)
                if num_failed_starts >= MAX_FAILED_STARTS:
                    self._on_hopeless(index)
                continue
            self.watch(index, client)
            if not self._on_started(index, client, stats):
                client.abandon()
            return

    def _delay_s(self, index: int) -> float:
        num_failures = self._num_failures[index]
        return min(FIRST_DELAY_S * 2.0 ** (num_failures - 1), MAX_DELAY_S) if num_failures else 0.0

    def _watch(self) -> None:
        """End cores whose step is late in two checks in a row; their clients then report them as lost."""
        late: set[int] = set()
        interval_s = min(self._step_timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S)
        while not self._stopping.wait(interval_s):
            with self._lock:
                watched = dict(self._watched)
            still_late: set[int] = set()
            for index, (client, _) in watched.items():
                age_s = client.step_age_s()
                if age_s is None or age_s <= self._step_timeout_s:
                    continue
                if index in late:
                    logger.error(
                        "A step of replica %d takes longer than %g s. %s",
                        index,
                        self._step_timeout_s,
                        client.describe_step(),
                    )
                    client.abandon()
                else:
                    still_late.add(index)
            late = still_late
