"""The lower side of `torch.cuda.Stream`, `Event` and `CUDAGraph`, over a `Machine`."""

from collections.abc import Callable
from typing import Any

import torch

from infer_proofs.kernels.simulated_gpu.machine import Machine


def stream_base(machine: Machine) -> type:
    """Return what stands for `torch._C._CudaStreamBase`."""

    class StreamBase:
        stream_id: int
        device_index: int

        def __new__(cls, priority: int = 0, **ids: int) -> Any:
            del priority
            self = super().__new__(cls)
            self.device_index = ids.get("device_index", machine.current)
            streams = machine.gpus[self.device_index].streams
            self.stream_id = ids["stream_id"] if "stream_id" in ids else len(streams)
            streams.setdefault(self.stream_id, type(streams[0])())
            return self

        def __init__(self, *args: Any, **named: Any) -> None:
            del args, named

        device_type = 1

        @property
        def device(self) -> torch.device:
            return torch.device("cuda", self.device_index)

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        @property
        def state(self) -> Any:
            return machine.gpus[self.device_index].streams[self.stream_id]

        def query(self) -> bool:
            return not self.state.queued

        def synchronize(self) -> None:
            machine.forbid_in_capture("waiting for a stream")
            machine.synchronizations += 1
            self.state.end(self.state.count)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, StreamBase) and (self.device_index, self.stream_id) == (
                other.device_index,
                other.stream_id,
            )

        def __hash__(self) -> int:
            return hash((self.device_index, self.stream_id))

    return StreamBase


def event_base(machine: Machine) -> type:
    """Return what stands for `torch._C._CudaEventBase`. An event that was queried once has happened the next time."""

    class EventBase:
        def __new__(cls, **options: Any) -> Any:
            del options
            self = super().__new__(cls)
            self._behind = None
            self._was_queried = False
            return self

        def __init__(self, *args: Any, **named: Any) -> None:
            del args, named

        _behind: tuple[Any, int] | None
        _was_queried: bool

        def record(self, stream: Any) -> None:
            if stream.device_index != machine.current and self._behind is not None:
                raise torch.AcceleratorError("CUDA error: invalid resource handle")
            self._behind = stream.state, stream.state.count
            self._was_queried = False

        def wait(self, stream: Any) -> None:
            if self._behind is not None:
                state, count = self._behind
                stream.state.queue(lambda: state.end(count))

        def query(self) -> bool:
            if self._was_queried:
                self._end()
            self._was_queried = True
            return self._behind is None or not any(number <= self._behind[1] for number, _ in self._behind[0].queued)

        def elapsed_time(self, end: object) -> float:
            del end
            return 1.0

        def synchronize(self) -> None:
            machine.forbid_in_capture("waiting for an event")
            machine.synchronizations += 1
            self._end()

        def _end(self) -> None:
            if self._behind is not None:
                self._behind[0].end(self._behind[1])

    return EventBase


def graph_base(machine: Machine) -> type:
    """Return what stands for `torch._C._CUDAGraph`. What is captured is computed too, unlike on a GPU."""

    class GraphBase:
        def __new__(cls, keep_graph: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's order
            del keep_graph
            self = super().__new__(cls)
            self._launches = []
            self._pool = (0, next(machine.numbers))
            self._has_graph_exec = False
            return self

        def __init__(self, *args: Any, **named: Any) -> None:
            del args, named

        _launches: list[Callable[[], None]]
        _pool: tuple[int, int]
        _has_graph_exec: bool

        def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
            del capture_error_mode
            machine.forbid_in_capture("capturing")
            if machine.gpus[machine.current].current_stream == 0:
                raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
            self._pool = pool or self._pool
            machine.capture = self._launches

        def capture_end_pre(self) -> None:
            machine.capture = None

        def capture_end_post(self) -> None:
            pass

        def capture_end(self) -> None:  # torch 2.11 calls it, later ones the two before
            self.capture_end_pre()

        def instantiate(self) -> None:
            self._has_graph_exec = True

        def replay(self) -> None:
            machine.forbid_in_capture("launching a graph")
            with torch.inference_mode():
                for launch in self._launches:
                    launch()

        def reset(self) -> None:
            self._launches = []

        def pool(self) -> tuple[int, int]:
            return self._pool

    return GraphBase
