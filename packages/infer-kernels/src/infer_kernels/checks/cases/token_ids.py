"""Token ids that are filled in on the device before a step."""

from collections.abc import Iterator

import torch

from infer_kernels import resolve_token_ids
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.op_call import EQUAL, OpCall
from infer_kernels.checks.self_check import ModelOps, SelfCheck


def resolve_call(ids: list[int], num_latest: int) -> OpCall:
    """Return a call with `ids`, of which those below 0 are filled in from `num_latest` random ones."""
    latest = torch.randint(100_000, (num_latest,), generator=torch.Generator().manual_seed(num_latest))
    return OpCall(
        op="resolve_token_ids",
        label=f"{len(ids)} ids, {num_latest} latest tokens",
        tensors=(torch.tensor(ids, dtype=torch.int32), latest),
        written=(0,),
        close=EQUAL,
    )


def token_id_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the check of known and pending ids, which is that of every model."""
    del ops
    run = resolve_call([5, -1, 0, -65, -2], 65).compare
    yield SelfCheck(op="resolve_token_ids", label="known and pending ids", run=run)


def token_id_launches() -> Iterator[LaunchCase]:
    """Yield the one kernel."""

    def launch() -> None:
        resolve_token_ids(torch.zeros(3, dtype=torch.int32), torch.zeros(5, dtype=torch.int64))

    yield LaunchCase(op="resolve_token_ids", label="int64 tokens", dtype=torch.int32, launch=launch)


def token_id_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield odd numbers of ids; they have no floating-point dtype."""
    del dtype
    yield resolve_call([-1], 1)
    yield resolve_call([5, -1, 0, -3], 3)
    yield resolve_call([-1 - index % 7 if index % 3 else index for index in range(1031)], 7)


TOKEN_IDS = OpCases(
    ops=("resolve_token_ids",), checks=token_id_checks, launches=token_id_launches, calls=token_id_calls
)
