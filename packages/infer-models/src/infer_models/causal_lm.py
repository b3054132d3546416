"""`CausalLM`: the interface that every family's model has to an engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor, nn

from infer_models.attention import AttentionSpec, KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers import LinearBase, LMHead, PackedLinear


class CausalLM(nn.Module):
    """A decoder and its LM head, over a flat batch of tokens.

    Parameters require no gradient until `requires_grad_(True)`; with `CausalView` the model is then trainable.

    Attributes:
        config: the architecture.
        attention_specs: one for each layer.
        num_parameters: weights, tied ones counted once.
        ignored_tensors: patterns (as of `fnmatch`) of names that the family's checkpoints carry needlessly.
    """

    ignored_tensors: ClassVar[tuple[str, ...]] = ("*.rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, decoder: nn.Module, lm_head: LMHead) -> None:
        """Join `decoder`, which gives hidden states [tokens, hidden], and `lm_head`."""
        super().__init__()
        self.config = config
        self.attention_specs: tuple[AttentionSpec, ...] = config.attention_specs
        self.model = decoder
        self.lm_head = lm_head
        self.num_parameters = sum(parameter.numel() for parameter in self.parameters())

    def prepack(self) -> None:
        """Reorder all matrices as their device multiplies them fastest.

        This cannot be undone: the model can then be neither trained nor saved. A tied LM head gets a copy.
        """
        for module in self.modules():
            if isinstance(module, LinearBase):
                module.prepack()

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView, logits_indices: Tensor | None = None
    ) -> Tensor:
        """Compute logits.

        Args:
            input_ids: [tokens], int32 or int64.
            position_ids: [tokens], each token's position in its own sequence, int32 or int64.
            cache: knows which tokens belong to which sequence, and attends.
            logits_indices: [rows], the tokens whose logits are wanted; None: all of them.

        Returns:
            [rows, vocab], in the model's dtype.
        """
        return self.logits(self.hidden_states(input_ids, position_ids, cache), logits_indices)

    def hidden_states(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Return what the LM head reads, [tokens, hidden] in the model's dtype; arguments as for `forward`."""
        hidden: Tensor = self.model(input_ids, position_ids, cache)
        return hidden

    def logits(self, hidden: Tensor, logits_indices: Tensor | None = None) -> Tensor:
        """Return the logits [rows, vocab] of some rows of `hidden`, [tokens, hidden]; None: of all of them.

        Where many are wanted, ask for a few at a time: one row of a large vocabulary is as large as many hidden states.
        """
        logits: Tensor = self.lm_head(hidden if logits_indices is None else hidden.index_select(0, logits_indices))
        return logits

    def checkpoint_tensors(self) -> Mapping[str, Tensor]:
        """Return the weights by their names in checkpoints, packed ones in parts, as views; a tied head is left out."""
        packed = {name: module for name, module in self.named_modules() if isinstance(module, PackedLinear)}
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.named_parameters():
            owner, _, leaf = name.rpartition(".")
            if owner not in packed:
                tensors[name] = parameter.detach()
                continue
            place = owner.rpartition(".")[0]
            for part, weight in packed[owner].part_weights().items():
                tensors[f"{place}.{part}.{leaf}"] = weight
        return MappingProxyType(tensors)
