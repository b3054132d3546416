"""`CPUGraph`: captures a step on a CPU once, and replays it for every batch.

Between two matrix products a step has dozens of small operations. The cost of each is its call: the interpreter,
torch's bindings and the start of its threads. A captured step is one call of C, as a CUDA graph is one launch on a GPU.
Everything that differs from step to step is read from buffers of fixed place.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from infer_cache import KVPool, StatePool
from infer_engine.model_runner.inputs.cache_views import cache_view
from infer_engine.model_runner.inputs.forward_batch import BatchShape, DeviceInputs, ForwardBatch, RowPart
from infer_kernels import plan_attention
from infer_kernels.cpu import CapturedStep
from infer_models import CausalLM


class CPUGraph:
    """The captured step of a model over a KV pool, from token ids to hidden states: decodes, prompts, or both.

    Implements `StepGraph`.

    Attributes:
        inputs: where the captured step reads its batch.
    """

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        *,
        max_tokens: int,
        max_seqs: int,
        max_seq_len: int,
        state_pool: StatePool | None = None,
        row_parts: Iterable[RowPart] = (),
    ) -> None:
        """Capture the step of up to `max_tokens` tokens, of batches with `row_parts`; nothing is computed.

        Raises:
            NotCapturableError: the model computes something that is no kernel of the library.
        """
        max_tokens = max(max_tokens, max_seqs + 1)  # a captured step tells them apart by their number
        num_columns = -(-max_seq_len // pool.block_size) + 1
        num_groups = len(pool.num_blocks)
        self._query_start = torch.zeros(max_seqs + 1, dtype=torch.int32)
        self._query_start[-1] = max_tokens
        self._seq_lens = torch.zeros(max_seqs, dtype=torch.int32)
        self._block_tables = [torch.zeros(max_seqs, num_columns, dtype=torch.int32) for _ in range(num_groups)]
        self.inputs = DeviceInputs(
            shape=BatchShape(max_tokens, max_seqs, is_decode_only=False),
            input_ids=torch.zeros(max_tokens, dtype=torch.int32),
            position_ids=torch.zeros(max_tokens, dtype=torch.int32),
            slots=tuple(torch.zeros(max_tokens, dtype=torch.int32) for _ in range(num_groups)),
            metadata=None,
            row_parts={
                part: tuple(torch.full((max_seqs,), part.padding, dtype=torch.int32) for _ in range(part.num_columns))
                for part in row_parts
            },
            row_starts=self._query_start,
        )
        plans = [
            plan_attention(
                query_start=self._query_start,
                seq_lens=self._seq_lens,
                block_table=block_table,
                block_size=pool.block_size,
                device="cpu",
            )
            for block_table in self._block_tables
        ]
        view = cache_view(pool, self.inputs, plans, state_pool)
        self._kept_alive = (model, view)
        self._step = CapturedStep(max_tokens, max_seqs)
        with torch.inference_mode(), self._step.recording():
            self._hidden = model.hidden_states(self.inputs.input_ids, self.inputs.position_ids, view)

    def replay(self, batch: ForwardBatch) -> Tensor:
        """Return what the LM head reads, [tokens, hidden]; the next replay overwrites it."""
        inputs, num_tokens, num_seqs = self.inputs, len(batch.input_ids), len(batch.seq_lens)
        inputs.input_ids[:num_tokens] = batch.input_ids
        inputs.position_ids[:num_tokens] = batch.position_ids
        for kept, given in zip(inputs.slots, batch.slots, strict=True):
            kept[:num_tokens] = given
        self._query_start[: num_seqs + 1] = batch.query_start
        self._seq_lens[:num_seqs] = batch.seq_lens
        for kept, given in zip(self._block_tables, batch.gather_block_tables(), strict=True):
            kept[:num_seqs, : given.shape[1]] = given
        for part, columns in inputs.row_parts.items():
            for kept, given in zip(columns, batch.row_parts[part], strict=True):
                kept[:num_seqs] = given
        self._step.replay(num_tokens, num_seqs)
        return self._hidden[:num_tokens]

    def choice(self, batch: ForwardBatch) -> None:
        """Return None: tokens are chosen by the sampler."""
