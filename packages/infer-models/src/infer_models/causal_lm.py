"""`CausalLM`: the interface that every family's model has to an engine."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor, nn

from infer_kernels import Largest
from infer_models.attention import AttentionSpec, KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers import Experts, LinearBase, LMHead, ShardedLayer, whole_weights
from infer_models.weights import StoredWeight


class CausalLM(nn.Module):
    """A decoder and its LM head, over a flat batch of tokens.

    Parameters require no gradient until `requires_grad_(True)`; with `CausalView` the model is then trainable.

    Attributes:
        config: the architecture.
        attention_specs: one for each layer, of this rank's heads.
        num_parameters: weights of the whole model, tied ones counted once.
        ignored_tensors: patterns (as of `fnmatch`) of names that the family's checkpoints carry needlessly.
    """

    ignored_tensors: ClassVar[tuple[str, ...]] = ("*.rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, decoder: nn.Module, lm_head: LMHead) -> None:
        """Join `decoder`, which gives hidden states [tokens, hidden], and `lm_head`."""
        super().__init__()
        self.config = config
        self.attention_specs: tuple[AttentionSpec, ...] = tuple(
            lm_head.shard.attention_spec(spec) for spec in config.attention_specs
        )
        self.model = decoder
        self.lm_head = lm_head
        self.num_parameters = sum(each.num_weights for each in self.stored_weights().values())

    def prepack(self) -> None:
        """Reorder all matrices as their device multiplies them fastest.

        This cannot be undone: the model can then be neither trained nor saved. A tied LM head gets a copy.
        """
        for module in self.modules():
            if isinstance(module, LinearBase | Experts):
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

    def most_probable(self, hidden: Tensor, *, vocab_size: int) -> Largest:
        """Return the most probable token of each row of `hidden`, [rows, hidden], among the ids below `vocab_size`."""
        return self.lm_head.most_probable(hidden, vocab_size=vocab_size)

    def stored_weights(self) -> Mapping[str, StoredWeight]:
        """Return what this rank holds of each tensor of a checkpoint, by its name there; a tied head is left out."""
        return MappingProxyType(
            {name: each for _, stored in self.stored_by_parameter() for name, each in stored.items()}
        )

    def stored_by_parameter(self) -> Iterator[tuple[nn.Parameter, Mapping[str, StoredWeight]]]:
        """Yield each parameter with the tensors that it consists of: one, or those of a packed one in their order."""
        seen: set[nn.Parameter] = set()
        for path, module in self.named_modules():
            stored = module.stored_weights(path) if isinstance(module, ShardedLayer) else whole_weights(module, path)
            for parameter, tensors in stored:
                if parameter not in seen:
                    seen.add(parameter)
                    yield parameter, tensors
