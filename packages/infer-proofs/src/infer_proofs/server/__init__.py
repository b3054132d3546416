"""For tests of what is built on the server: an engine without a model, a server around it, parsers for its replies.

`infer_proofs.server.client` is not imported here: it needs httpx, which the server does not.
"""

from infer_proofs.server.fake_engine import FAKE_INFO, BusyOnce, FakeEngine, FakeStream, Script
from infer_proofs.server.parsing import metric_samples, sse_events
from infer_proofs.server.process import ServerProcess, server_process
from infer_proofs.server.server import open_socket, running_server, send_raw

__all__ = [
    "FAKE_INFO",
    "BusyOnce",
    "FakeEngine",
    "FakeStream",
    "Script",
    "ServerProcess",
    "metric_samples",
    "open_socket",
    "running_server",
    "send_raw",
    "server_process",
    "sse_events",
]
