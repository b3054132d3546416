"""`Ingress`: the deployment that speaks HTTP. It has the text side of an engine over the cores of all replicas."""

from typing import Any

import msgspec
from litestar.types import ASGIApp
from ray import serve
from ray.serve.handle import DeploymentHandle

from infer_engine.assembly.core import load_tokenizer
from infer_engine.assembly.engine import assemble_engine
from infer_engine.protocol import EngineConfig, EngineStats, EngineStatus
from infer_engine.replicas.replicated_client import ReplicatedCoreClient
from infer_engine.replicas.routing import Router
from infer_ray.membership import Membership
from infer_server import ServerSettings, create_app
from infer_server.observability.logs import configure_logging


@serve.ingress()
class Ingress:
    """The web application of `infer-server`, over the replicas of a cluster."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, config: dict[str, Any], settings: dict[str, Any], replicas: DeploymentHandle[Any]
    ) -> None:
        """Wait for the first replica; `config` and `settings` have the fields of `EngineConfig` and `ServerSettings`.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, or a file of its tokenizer is missing or damaged.
        """
        self._settings = msgspec.convert(settings, ServerSettings)
        configure_logging(self._settings)
        engine_config = msgspec.convert(config, EngineConfig)
        context = serve.get_replica_context()
        membership = Membership(engine_config, replicas, app_name=context.app_name)
        info = await membership.first_info()
        router = Router(
            policy=engine_config.routing_policy,
            cache_tokens=info.num_kv_blocks * info.block_size,
            first=context.rank.rank,
        )
        client = ReplicatedCoreClient(
            [], stats=[], router=router, start_core=None, step_timeout_s=engine_config.step_timeout_s
        )
        self._engine = assemble_engine(engine_config, client, load_tokenizer(engine_config), info, EngineStats())
        membership.follow(client)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the web application, for Ray Serve."""
        return create_app(self._engine, settings=self._settings)

    async def __del__(self) -> None:
        """End the sessions with all replicas. Ray Serve awaits this when the ingress has no requests left."""
        await self._engine.close()

    def check_health(self) -> None:
        """Raise an error if the engine cannot serve any more; Ray Serve then starts another ingress."""
        if self._engine.status is EngineStatus.DEAD:
            raise RuntimeError("The engine is dead.")
