"""`Membership`: gives an engine the cores of the replicas that Ray Serve runs."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle

from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_ray.client import RayCoreClient
from infer_ray.watching import watch_replicas
from infer_ray.wire import ReplicaDescription, decode_description

logger = logging.getLogger(__name__)

RETRY_S = 0.5
"""Seconds between two attempts to reach a replica."""


class Membership:
    """Adds the core of each replica that appears, and retires those of replicas that disappear.

    Replicas of other models are left alone: while an application is redeployed there are old and new ones.
    """

    def __init__(self, config: EngineConfig, handle: DeploymentHandle[Any], *, app_name: str) -> None:
        """Use the replicas of the model of `config` that `handle` reaches, on the running event loop."""
        self._config = config
        self._handle = handle
        self._app_name = app_name
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, _Member] = {}
        self._engine: ReplicatedCoreClient | None = None

    async def first_info(self) -> EngineInfo:
        """Return what the first replica of the model has loaded, when there is one."""
        while True:
            description = decode_description(await self._handle.describe.remote(None))
            if description.serves(self._config):
                return description.info
            await asyncio.sleep(RETRY_S)

    def follow(self, engine: ReplicatedCoreClient) -> None:
        """From here on give `engine`, which has been started, the cores of all replicas."""
        self._engine = engine
        watch_replicas(self._app_name, lambda replicas: self._loop.call_soon_threadsafe(self._see, replicas))

    def _see(self, replicas: Mapping[str, ReplicaDescription]) -> None:
        mine = {replica_id for replica_id, description in replicas.items() if description.serves(self._config)}
        assert self._engine is not None
        for replica_id in self._members.keys() - mine:
            logger.info("The Ray replica %s takes no more requests.", replica_id)
            self._members.pop(replica_id).retire()
        for replica_id in mine - self._members.keys():
            self._members[replica_id] = _Member(replica_id, self._handle, self._engine)


class _Member:
    """A replica that runs; its core is in the engine while there is a session with it.

    A replica that has died without Ray Serve's notice is thus without requests: they would be lost one after the other.
    """

    def __init__(self, replica_id: str, handle: DeploymentHandle[Any], engine: ReplicatedCoreClient) -> None:
        self._replica_id = replica_id
        self._handle = handle
        self._engine = engine
        self._client: RayCoreClient | None = None
        self._is_retired = False
        self._connecting = asyncio.get_running_loop().create_task(self._stay_connected())

    def retire(self) -> None:
        self._is_retired = True
        if self._client is None:
            self._connecting.cancel()
        else:
            self._client.retire()
            self._engine.retire(self._client)

    async def _stay_connected(self) -> None:
        while not self._is_retired:
            try:
                client = await RayCoreClient.connect(self._replica_id, self._handle)
            except Exception as error:  # noqa: BLE001 - whatever Ray raises
                logger.warning("The Ray replica %s cannot be reached: %s", self._replica_id, type(error).__name__)
            else:
                logger.info("The Ray replica %s takes requests.", self._replica_id)
                self._client = client
                if not self._engine.add(client, client.stats):
                    client.stop()
                    return  # the engine has ended
                await client.ended.wait()
                self._client = None
            await asyncio.sleep(RETRY_S)
