"""The application as `serve run` deploys it: it grows and shrinks with its requests, and is redeployed under them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from infer_proofs.ray.running_cluster import wait_until
from infer_proofs.server.mixed_streams import mixed_bodies, read_streams, sample

PROGRAM = """
import json, sys
import ray
from ray import serve
from infer_ray.application import application
ray.init(address="local", include_dashboard=False, object_store_memory=100_000_000, num_cpus=4)
serve.start(http_options={"port": int(sys.argv[1])})
for line in sys.stdin:
    serve.run(application(json.loads(line)))
    print("deployed", flush=True)
serve.shutdown()
ray.shutdown()
"""
BODIES = mixed_bodies(16)
GIVE_UP_S = 180


def free_port() -> int:
    """Return a port that nothing listens on, of those that systems give to no connection, of which Ray opens many."""
    for port in range(20_000 + os.getpid() % 5_000, 30_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Deployer:
    """A program that deploys the application on a cluster of its own, as often as it is told to."""

    def __init__(self, log: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        self._num_deployed = 0
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(port)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def begin(self, **arguments: dict[str, Any]) -> None:
        """Deploy the application with `arguments`, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        self._num_deployed += 1

    def deploy(self, **arguments: dict[str, Any]) -> None:
        """Deploy the application with `arguments`, and return when it serves."""
        self.begin(**arguments)
        wait_until(self.is_done, within_s=GIVE_UP_S)

    def is_done(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return self._log.read_text().count("deployed\n") == self._num_deployed

    def end(self) -> None:
        """End the program, and see that no process is left."""
        everything = psutil.Process(self._process.pid).children(recursive=True)
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.wait(GIVE_UP_S) == 0
            assert not psutil.wait_procs(everything, timeout=GIVE_UP_S)[1]
        finally:
            for process in filter(psutil.Process.is_running, everything):
                process.kill()
            self._process.kill()


@pytest.fixture
def deployer(tmp_path: Path) -> Iterator[Deployer]:
    deployer = Deployer(tmp_path / "log")
    yield deployer
    deployer.end()


@pytest.mark.covers("replicas/ray-application", "replicas/ray-autoscaling")
@pytest.mark.timeout(900)
def test_replicas_come_with_requests_and_leave_without_and_a_redeployment_loses_none(deployer: Deployer) -> None:
    grows = {"max_replicas": 2, "target_ongoing_requests": 2, "upscale_delay": 0, "downscale_delay": 1}
    deployer.deploy(cluster=grows)
    assert sample(deployer.url, "replica_up") == 1
    undisturbed = read_streams(deployer.url, BODIES)
    with ThreadPoolExecutor(1) as reader:
        texts = []
        while sample(deployer.url, "replica_up") == 1:
            texts.append(reader.submit(read_streams, deployer.url, BODIES).result(GIVE_UP_S))
            assert len(texts) < GIVE_UP_S
        wait_until(lambda: sample(deployer.url, "replica_up") == 1, within_s=GIVE_UP_S)
        deployer.begin(cluster={"replicas": 2}, engine={"max_waiting_requests": 500})
        while not deployer.is_done():
            texts.append(reader.submit(read_streams, deployer.url, BODIES).result(GIVE_UP_S))
        texts.append(read_streams(deployer.url, BODIES))
    assert all(each == undisturbed for each in texts)
    wait_until(lambda: sample(deployer.url, "replica_up") == 2, within_s=GIVE_UP_S)
