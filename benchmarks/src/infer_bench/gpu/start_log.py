"""What an engine logs about CUDA graphs when it starts: which ones proved themselves, and which were refused.

An engine computes with a graph only if it gave what the eager step gives. What came out of that is read from the log.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from infer_bench.gpu.parts import Finding

ENGINE_LOGGER = "infer_engine"
GRAPH_WORD = "graph"


@dataclass(slots=True)
class GraphLog:
    """What was logged about graphs at a start.

    Attributes:
        lines: all of it, in order.
        refusals: those lines that are warnings or errors.
    """

    lines: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


class _Collector(logging.Handler):
    def __init__(self, log: GraphLog) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        line = " ".join(record.getMessage().split())
        if GRAPH_WORD in line.lower():
            self._log.lines.append(line)
            if record.levelno >= logging.WARNING:
                self._log.refusals.append(line)


@contextmanager
def graph_log() -> Iterator[GraphLog]:
    """Yield what the engine logs about graphs inside."""
    log, logger = GraphLog(), logging.getLogger(ENGINE_LOGGER)
    collector, level = _Collector(log), logger.level
    logger.addHandler(collector)
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
    try:
        yield log
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)


def judge_graphs(what: str, log: GraphLog) -> Finding:
    """Judge whether every graph of an engine that was asked for graphs proved itself when it started."""
    found = "; ".join(log.refusals or log.lines)[-240:] or "the log says nothing of graphs"
    return Finding(what, found, wanted="all proved", holds=bool(log.lines) and not log.refusals)
