"""Program of a rank but 0: loads its part of the model and computes what rank 0 tells it to.

`python -m infer_engine.tensor_parallel.follower FD`, where FD is this process's end of the socket pair. It knows no
scheduler and no sampler, and ends with the process of rank 0.
"""

import logging
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import msgspec

from infer_engine.ipc.log_forwarding import LogSender
from infer_engine.ipc.process_memory import settle_memory
from infer_engine.ipc.processors import use_processors
from infer_engine.ipc.programs import EXIT_FAILED, MAX_FRAME_BYTES, MessageSender, read_messages
from infer_engine.ipc.worker_messages import CoreRefused

if TYPE_CHECKING:
    from infer_engine.tensor_parallel.messages import FollowerSetup

logger = logging.getLogger(__name__)


def main() -> int:
    """Follow rank 0 until it ends; return an exit code if the part of the model cannot be loaded."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides when to end
    connection = Connection(int(sys.argv[1]))
    first_frame = connection.recv_bytes(MAX_FRAME_BYTES)
    start = msgspec.msgpack.decode(first_frame)
    num_parts = start["config"]["data_parallel_size"] * start["config"]["tensor_parallel_size"]
    use_processors(start["processors"], num_parts=num_parts)
    from infer_engine.tensor_parallel.messages import FollowerSetup, ToFollower  # noqa: PLC0415 - imports torch

    setup = msgspec.msgpack.decode(first_frame, type=FollowerSetup)
    sender = MessageSender(connection)
    logging.basicConfig(level=setup.log_level, format="%(message)s", handlers=[LogSender(sender.send)])
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    arguments = (connection, msgspec.msgpack.Decoder(ToFollower), inbox.put)
    threading.Thread(target=read_messages, args=arguments, name="infer-rank-0-reader", daemon=True).start()
    return _follow(setup, sender, inbox)


def _follow(setup: "FollowerSetup", sender: MessageSender, inbox: "queue.SimpleQueue[Any]") -> int:
    from infer_engine.tensor_parallel.following import FollowingRank  # noqa: PLC0415 - imports torch: after the reader
    from infer_models import CheckpointError  # noqa: PLC0415 - as above

    try:
        rank = FollowingRank(setup, send=sender.send)
    except (CheckpointError, ValueError) as error:
        sender.send(CoreRefused(message=str(error), is_checkpoint=isinstance(error, CheckpointError)))
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
