"""`AddressedRouter`: sends each call to the replica that its first argument names.

Which replica a request goes to is decided by `infer_engine.replicas`, as on one machine. Ray Serve tells the router
which replicas there are, and the router tells the rest of its process.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from infer_ray.watching import report_replicas
from infer_ray.wire import decode_description


class AddressedRouter(RequestRouter):
    """Router for calls whose first argument is the id of a replica, or None for any."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the replicas that run, and pass them on."""
        super().update_replicas(replicas)
        report_replicas(
            self.app_name,
            {replica.replica_id.unique_id: decode_description(replica.replica_metadata) for replica in replicas},
        )

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replica that the call is for, if it runs; Ray Serve asks again, later, if it does not."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        wanted = pending_request.args[0]
        return [[each for each in candidate_replicas if wanted in (None, each.replica_id.unique_id)]]
