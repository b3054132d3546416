"""Program of a core process: loads the model, steps the core and sends the results.

`python -m infer_engine.assembly.core_process FD`, where FD is this process's end of the socket pair.
"""

import logging
import os
import queue
import sys
import threading
import time

import msgspec

from infer_engine.ipc.chunked_payloads import split_into_chunks
from infer_engine.ipc.core_loop import CoreLoop, Inbox, StepTimer
from infer_engine.ipc.process_messages import CoreReady, CoreSetup, Heartbeat, ToCoreProcess
from infer_engine.messages import StepResult
from infer_engine.processes.child_process import (
    EXIT_FAILED,
    EXIT_OK,
    CoreRefused,
    MessageSender,
    connect_to_parent,
    follow_parent,
)
from infer_engine.processes.memory import settle_memory, without_collections
from infer_engine.processes.processors import available_processors, divide_processors, use_processors

logger = logging.getLogger(__name__)


def main() -> int:
    """Serve one client until it ends or sends `Halt`, then end the process; return an exit code if there is no core."""
    connection, first_frame = connect_to_parent()  # which drains first; this process ends after it
    setup = msgspec.msgpack.decode(first_frame, type=CoreSetup)
    inbox: Inbox = queue.SimpleQueue()
    sender = follow_parent(connection, ToCoreProcess, inbox.put, log_level=setup.log_level)
    return _serve(setup, sender, inbox)


def _serve(setup: CoreSetup, sender: MessageSender, inbox: Inbox) -> int:
    config = setup.config
    processors = [setup.processors]
    if config.tensor_parallel_size > 1 and not config.device.startswith("cuda"):
        processors = divide_processors(setup.processors or available_processors(), config.tensor_parallel_size)
    use_processors(processors[0], num_parts=config.data_parallel_size * config.tensor_parallel_size)
    from infer_engine.ipc.kernel_compiler import compiling_kernels  # noqa: PLC0415 - only after the reader has started

    try:
        with compiling_kernels(config):
            with without_collections():
                from infer_engine.assembly.core import build_core  # noqa: PLC0415 - imports slowly
                from infer_engine.executor.executor import RankOptions  # noqa: PLC0415 - imports torch
            built = build_core(
                config,
                rank_options=RankOptions(processors=processors, on_lost=_end_without_a_rank),
                warns_of_unread_fields=False,
            )
    except Exception as error:
        logger.debug("The engine's process cannot load.", exc_info=True)
        sender.send(CoreRefused.by(error))
        os._exit(EXIT_FAILED)  # a normal exit might wait for other ranks
    timer = StepTimer(time.monotonic)
    threading.Thread(target=_beat, args=(setup, sender, timer), name="infer-heartbeat", daemon=True).start()
    sender.send(CoreReady(info=built.info, stats=built.core.stats))
    settle_memory(built.info.device)  # while the server makes its routes

    def emit(result: StepResult) -> None:
        for message in split_into_chunks(result):
            sender.send(message)

    # The process ends by `_exit`. A normal exit would read back the released libraries, which takes seconds, and might
    # never end after a failure of the device, while streams wait.
    try:
        CoreLoop(built.core, emit=emit, timer=timer, inbox=inbox, grammars=built.grammars).run()
    except BaseException:
        logger.exception("The engine core failed; every request in it fails with it.")
        os._exit(EXIT_FAILED)
    os._exit(EXIT_OK)


def _end_without_a_rank() -> None:
    """End the process: its core may be waiting for the lost rank inside a collective."""
    logger.error("The engine core ends, as one of its ranks has ended; every request in it fails.")
    os._exit(EXIT_FAILED)


def _beat(setup: CoreSetup, sender: MessageSender, timer: StepTimer) -> None:
    """Send heartbeats for ever, with the stack of a step that takes too long."""
    while True:
        age_s = timer.age_s()
        is_late = age_s is not None and age_s > setup.config.step_timeout_s / 2
        sender.send(Heartbeat(step_age_s=age_s, stack=timer.stack() if is_late else None))
        time.sleep(setup.heartbeat_s)


if __name__ == "__main__":
    sys.exit(main())
