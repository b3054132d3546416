"""A cluster without Ray for tests.

Without Ray nothing of this folder is collected: Ray is in the dependency group `ray` alone. It is imported here first,
as warnings of its own would be errors in tests.
"""

import importlib.util
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.serve

        from infer_proofs.ray.fake_cluster import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[Any]:
    """A `FakeCluster` without replicas, whose cores end with the test."""
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Resources of a cluster that there is not, to be changed."""
    there: dict[str, float] = {"CPU": 8.0}
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    return there
