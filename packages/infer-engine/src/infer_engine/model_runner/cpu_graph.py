"""`CPUGraph`: captures a decode step on a CPU once, and replays it.

Between two matrix products a step has dozens of small operations. For one token the cost of each is its call: the
interpreter, torch's bindings and the start of its threads. A captured step is one call of C, as a CUDA graph is one
launch on a GPU. Everything that differs from step to step is read from buffers of fixed place.
"""

import torch
from torch import Tensor

from infer_cache import KVPool, PagedCacheView
from infer_engine.model_runner.input_buffers import ForwardBatch
from infer_kernels import KVSlots, plan_attention
from infer_kernels.cpu import CapturedStep
from infer_models import CausalLM


class CPUGraph:
    """The captured decode step of a model over a KV pool."""

    def __init__(self, model: CausalLM, pool: KVPool, *, max_seqs: int, max_seq_len: int) -> None:
        """Capture the step for up to `max_seqs` sequences of up to `max_seq_len` tokens; nothing is computed.

        Raises:
            NotCapturableError: the model computes something that is no kernel of the library.
        """
        num_columns = -(-max_seq_len // pool.block_size) + 1
        num_groups = len(pool.num_blocks)
        self._input_ids = torch.zeros(max_seqs, dtype=torch.int32)
        self._position_ids = torch.zeros(max_seqs, dtype=torch.int32)
        self._seq_lens = torch.ones(max_seqs, dtype=torch.int32)
        self._slots = [torch.zeros(max_seqs, dtype=torch.int32) for _ in range(num_groups)]
        self._block_tables = [torch.zeros(max_seqs, num_columns, dtype=torch.int32) for _ in range(num_groups)]
        plans = [
            plan_attention(
                query_start=torch.arange(max_seqs + 1, dtype=torch.int32),
                seq_lens=self._seq_lens,
                block_table=block_table,
                block_size=pool.block_size,
                device="cpu",
            )
            for block_table in self._block_tables
        ]
        view = PagedCacheView(
            pool, slots=[KVSlots(each, block_size=pool.block_size) for each in self._slots], plans=plans
        )
        self._kept_alive = (model, view)
        self._step = CapturedStep(max_seqs)
        with torch.inference_mode(), self._step.recording():
            self._logits: Tensor = model(self._input_ids, self._position_ids, view)

    def replay(self, batch: ForwardBatch) -> Tensor:
        """Return the logits [seqs, vocab] of a decode step with one row for each sequence."""
        count = len(batch.input_ids)
        self._input_ids[:count] = batch.input_ids
        self._position_ids[:count] = batch.position_ids
        self._seq_lens[:count] = batch.seq_lens
        for kept, given in zip(self._slots, batch.slots, strict=True):
            kept[:count] = given
        for kept, given in zip(self._block_tables, batch.block_tables, strict=True):
            kept[:count, : given.shape[1]] = given
        self._step.replay(count)
        return self._logits[:count].clone()
