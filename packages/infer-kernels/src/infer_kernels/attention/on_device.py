"""`plan_attention_on_device`: a plan over metadata that lies on the device, as captured steps need it."""

import torch

from infer_kernels.arguments import require_dense_rows, require_device, require_dtype, require_rank, require_shape
from infer_kernels.attention.plan import AttentionPlan, DeviceMetadata
from infer_kernels.attention.triton.attention_buffers import AttentionBuffers
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.gpu import describe_gpu


def plan_attention_on_device(
    metadata: DeviceMetadata,
    *,
    num_tokens: int,
    has_decodes: bool,
    has_prefills: bool,
    block_size: int,
    memory: AttentionBuffers,
    batch_invariant: bool = False,
) -> AttentionPlan:
    """Lay out one step's ragged batch from tensors on the device, once for all its layers.

    The host reads nothing and waits for nothing, and nothing is allocated: a CUDA graph may capture this call and the
    layers that attend with the plan. Each replay then serves the sequences that are in the tensors of `metadata` at
    that time, as many as were captured, and of the captured phases. Values are not checked: lengths must be at least
    the rows, or 0, and fit `memory` (see `AttentionBuffers.require_room`) and the columns of the block table.

    A sequence of length 0 is padding. In a step of decodes it has one row, which becomes zeros; in a mixed step none.

    Args:
        metadata: the sequences, in tensors that stay where they are.
        num_tokens: rows of q. There may be more than the last of `query_start`: what attention returns for these is not
            written, and may be anything.
        has_decodes: whether there may be decodes: sequences of one row that are not prefill.
        has_prefills: whether there may be sequences that are prefill.
        block_size: tokens of a block.
        memory: for what the plan computes.
        batch_invariant: a row's bits depend on nothing but its sequence's tokens, see `plan_attention`.

    Returns:
        The plan. It reads the tensors of `metadata` whenever a layer attends, on the device.

    Raises:
        ValueError: a shape, device, stride or number does not fit.
        TypeError: a dtype is not int32.
    """
    vectors = {
        "query_start": metadata.query_start,
        "seq_lens": metadata.seq_lens,
        "is_prefill": metadata.is_prefill,
        "block_rows": metadata.block_rows,
    }
    for name, tensor in {**vectors, "block_table": metadata.block_table}.items():
        require_dtype(name, tensor, torch.int32)
        require_device(name, tensor, "memory", memory.device)
    require_rank("seq_lens", metadata.seq_lens, "seqs")
    num_seqs = metadata.num_seqs
    for name, tensor in vectors.items():
        why = "one more than `seq_lens`" if name == "query_start" else "one for each of `seq_lens`"
        require_shape(name, tensor, (num_seqs + (name == "query_start"),), why)
        require_dense_rows(name, tensor)
    require_rank("block_table", metadata.block_table, "rows, columns")
    require_dense_rows("block_table", metadata.block_table)
    if block_size < 1:
        raise ValueError(f"`block_size` is {block_size}; pass at least 1")
    if num_tokens < 0:
        raise ValueError(f"`num_tokens` is {num_tokens}; pass at least 0")
    memory.require_room(num_seqs=num_seqs, num_tokens=num_tokens)
    return TritonAttentionPlan(
        memory.as_prefill(metadata) if batch_invariant else metadata,
        num_tokens=num_tokens,
        has_decodes=has_decodes and not batch_invariant,
        has_prefills=has_prefills or (has_decodes and batch_invariant),
        block_size=block_size,
        gpu=describe_gpu(memory.device),
        memory=memory,
    )
