"""Program of a rank but 0: loads its part of the model and computes what rank 0 tells it to.

`python -m infer_engine.executor.worker_process FD`, where FD is this process's end of the socket pair. It knows no
scheduler and no sampler, and ends with the process of rank 0.
"""

import logging
import os
import queue
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from infer_engine.processes.child_process import (
    EXIT_FAILED,
    CoreRefused,
    MessageSender,
    connect_to_parent,
    follow_parent,
)
from infer_engine.processes.memory import settle_memory, without_collections
from infer_engine.processes.processors import use_processors

if TYPE_CHECKING:
    from infer_engine.executor.messages import WorkerSetup

logger = logging.getLogger(__name__)


def main() -> int:
    """Follow rank 0 until it ends; return an exit code if the part of the model cannot be loaded."""
    connection, first_frame = connect_to_parent()
    start = msgspec.msgpack.decode(first_frame)
    num_parts = start["config"]["data_parallel_size"] * start["config"]["tensor_parallel_size"]
    use_processors(start["processors"], num_parts=num_parts)
    with without_collections():
        from infer_engine.executor.messages import ToWorker, WorkerSetup  # noqa: PLC0415 - imports torch

    setup = msgspec.msgpack.decode(first_frame, type=WorkerSetup)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sender = follow_parent(connection, ToWorker, inbox.put, log_level=setup.log_level)
    return _follow(setup, sender, inbox)


def _follow(setup: "WorkerSetup", sender: MessageSender, inbox: "queue.SimpleQueue[Any]") -> int:
    from infer_engine.executor.worker import Worker  # noqa: PLC0415 - imports torch: after the reader

    try:
        rank = Worker(setup, send=sender.send)
    except Exception as error:
        logger.debug("Rank %d cannot load.", setup.rank, exc_info=True)
        sender.send(CoreRefused.by(error))
        return EXIT_FAILED
    settle_memory(setup.config.device)
    try:
        while True:
            rank.handle(inbox.get())
    except BaseException:
        logger.exception("Rank %d failed; the engine fails with it.", setup.rank)
        os._exit(EXIT_FAILED)  # a normal exit might wait for the device or for other ranks


if __name__ == "__main__":
    sys.exit(main())
