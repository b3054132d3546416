"""Joins this process to the group of ranks of `torch.distributed`: NCCL between GPUs, gloo between CPUs."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from infer_engine.executor.gpu_links import explain_gpu_links
from infer_engine.gpu_visibility import VISIBLE_DEVICES, explain_hidden
from infer_engine.model_runner.inputs.forward_batch import ForwardBatch
from infer_engine.protocol import EngineStartError

_LEAST_TIMEOUT_S = 60.0
"""Ranks need time to find each other, however short a step is."""


def join_group(store: str, *, rank: int, size: int, device: torch.device, step_timeout_s: float) -> None:
    """Connect to the other ranks, which call this at the same time.

    Args:
        store: path of a file that all ranks can write, and nobody else.
        rank: this process's.
        size: number of ranks.
        device: this process's.
        step_timeout_s: seconds after which a collective fails.

    Raises:
        EngineStartError: NCCL cannot connect the GPUs; the message says what of this machine may be the reason.
    """
    # All ranks are on this machine: nothing listens on its other interfaces.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    on_gpu = device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=dist.FileStore(store, size),  # type: ignore[attr-defined]  # public, but torch's types do not export it
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=max(step_timeout_s, _LEAST_TIMEOUT_S)),
            device_id=device if on_gpu else None,
        )
    except dist.DistBackendError as error:
        if not on_gpu:
            raise
        first = device.index - rank
        links = explain_gpu_links([torch.device("cuda", first + each) for each in range(size)])
        reasons = "".join(f" {link.what.capitalize()}: {link.found}: {link.fix}." for link in links)
        raise EngineStartError(
            f"NCCL cannot connect rank {rank} to the other GPUs: {error}.{reasons} `NCCL_DEBUG=INFO` makes it say more."
        ) from error


def share_pending_ids(batch: ForwardBatch) -> None:
    """Replace the token ids of `batch` by those of rank 0, if its device alone knows some; every rank calls this."""
    if batch.has_pending_tokens:
        dist.broadcast(batch.input_ids, src=0)


def rank_device(device: torch.device, rank: int) -> torch.device:
    """Return the device of a rank: the CPU, or the GPU that is `rank` after that of rank 0.

    Raises:
        ValueError: there is no such GPU.
    """
    if device.type == "cpu":
        return device
    index = (device.index or 0) + rank
    num_gpus = torch.cuda.device_count()
    if index >= num_gpus:
        hidden = explain_hidden(os.environ.get(VISIBLE_DEVICES), num_usable=num_gpus)
        raise ValueError(
            f"`tensor_parallel_size` needs a GPU for each rank, but rank {rank} would have `cuda:{index}` and this "
            f"machine has {num_gpus}{hidden and f' ({hidden})'}; lower it."
        )
    return torch.device("cuda", index)
