"""`CausalLM`: the interface that every family's model has to an engine."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, cast

from torch import Tensor, nn

from infer_kernels import Largest, QuantizedWeight
from infer_models.attention import AttentionSpec, KVCacheView
from infer_models.config import ModelConfig
from infer_models.layers import (
    Decoder,
    Experts,
    LinearBase,
    LMHead,
    MultiTokenPredictor,
    OwnWeight,
    RotaryTables,
    ShardedLayer,
    VocabParallelEmbedding,
    whole_weights,
)
from infer_models.weights import StoredWeight


class CausalLM(nn.Module):
    """A decoder and its LM head, over a flat batch of tokens.

    Parameters require no gradient until `requires_grad_(True)`; with `CausalView` the model is then trainable.

    Attributes:
        config: the architecture.
        attention_specs: one for each layer, of this rank's heads.
        state_specs: the state of each layer, of this rank's heads, None where it has none; empty: none has.
        mtp: the layer that predicts one token further; None: the model was loaded without.
        short_length: the longest sequence, in tokens, whose rotary frequencies are not those of longer ones; None: all
            that the model computes have the same.
        num_parameters: weights of the whole model, tied ones counted once.
        num_mtp_parameters: those of `mtp` among them.
        ignored_tensors: patterns (as of `fnmatch`) of names that checkpoints of the family, unlike others, carry
            needlessly; some models of a family have more of them than others.
        stored_names: parts of names, between dots, for which checkpoints of the family have others.
        stacks_experts: checkpoints of the family have the experts of a layer in two tensors; both ways are read.
    """

    ignored_tensors: tuple[str, ...] = ()
    stored_names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    stacks_experts: ClassVar[bool] = False

    def __init__(
        self, config: ModelConfig, decoder: nn.Module, lm_head: LMHead, *, mtp: MultiTokenPredictor | None = None
    ) -> None:
        """Join `decoder`, which gives hidden states [tokens, hidden], `lm_head`, and `mtp` if the model has one."""
        super().__init__()
        self.config = config
        self.attention_specs: tuple[AttentionSpec, ...] = tuple(
            lm_head.shard.attention_spec(spec) for spec in config.attention_specs
        )
        self.state_specs = lm_head.shard.state_specs(config)
        self.model = decoder
        tables = [module for module in decoder.modules() if isinstance(module, RotaryTables)]
        self.short_length = tables[0].short_length if tables else None
        self.lm_head = lm_head
        self.mtp = mtp
        sizes = {name: each.num_weights for name, each in self.stored_weights().items()}
        self.num_parameters = sum(sizes.values())
        self.num_mtp_parameters = sum(size for name, size in sizes.items() if name.startswith("mtp."))

    def first_position(self, longest: int) -> int:
        """Return the position of the first token of a sequence that may have `longest` tokens at its end.

        It is 0, but where long sequences have rotary frequencies of their own, whose rows follow those of short ones.
        All of a sequence must be computed with the same: keys of one kind are of no use for the other.
        """
        return 0 if self.short_length is None or longest <= self.short_length else self.short_length

    def prepack(self) -> None:
        """Reorder all matrices as their device multiplies them fastest.

        This cannot be undone: the model can then be neither trained nor saved. A tied LM head gets a copy, unless it is
        quantized.
        """
        holders: defaultdict[int, list[LinearBase | VocabParallelEmbedding]] = defaultdict(list)
        for module in self.modules():
            if isinstance(module, LinearBase | VocabParallelEmbedding):
                holders[id(module.weight)].append(module)
            elif isinstance(module, Experts):
                module.prepack()
        for first, *others in holders.values():
            is_quantized = isinstance(first.weight, QuantizedWeight)
            first.prepack()
            for other in others:
                if is_quantized:
                    setattr(other, "weight", first.weight)  # noqa: B010 - of a tied head, whose type is wider
                else:
                    other.prepack()

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView, logits_indices: Tensor | None = None
    ) -> Tensor:
        """Compute logits.

        Args:
            input_ids: [tokens], int32 or int64.
            position_ids: [tokens], each token's position in its own sequence, counted from `first_position`, int32 or
                int64.
            cache: knows which tokens belong to which sequence, and attends.
            logits_indices: [rows], the tokens whose logits are wanted; None: all of them.

        Returns:
            [rows, vocab], in the model's dtype.
        """
        return self.logits(self.hidden_states(input_ids, position_ids, cache), logits_indices)

    def hidden_states(self, input_ids: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Return the input of the LM head, [tokens, hidden] in the model's dtype; arguments as for `forward`."""
        hidden: Tensor = self.model(input_ids, position_ids, cache)
        return hidden

    def predict_further(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, cache: KVCacheView) -> Tensor:
        """Return what the LM head reads of the tokens behind the next ones, [tokens, hidden], by the MTP layer.

        Args:
            input_ids: [tokens], the next tokens: each that behind the one at its position.
            hidden: [tokens, hidden], what `hidden_states`, or this function, has returned of the tokens at their
                positions.
            position_ids: [tokens], as for `forward`.
            cache: that of the MTP layer alone.
        """
        assert self.mtp is not None, "the model was loaded without its MTP layer"
        decoder = cast("Decoder", self.model)
        rotary = next(each for each in decoder.rotary_tables(position_ids) if each is not None)
        predicted: Tensor = self.mtp(decoder.embed_tokens(input_ids), hidden, rotary, cache)
        return predicted

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
        """Return this rank's part of each tensor of a checkpoint, by its name there; a tied head is left out."""
        return MappingProxyType(
            {name: each for _, stored in self.stored_by_parameter() for name, each in stored.items()}
        )

    def stored_by_parameter(self) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield each weight with the tensors that it consists of: one, or those of a packed one in their order."""
        for _, weight, tensors in self.stored_by_module():
            yield weight, tensors

    def stored_by_module(self) -> Iterator[tuple[nn.Module, OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the same with the module that holds the weight, the first one where it is tied."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            stored = module.stored_weights(path) if isinstance(module, ShardedLayer) else whole_weights(module, path)
            for weight, tensors in stored:
                if id(weight) not in seen:
                    seen.add(id(weight))
                    yield module, weight, {self._stored_name(name): each for name, each in tensors.items()}

    def _stored_name(self, name: str) -> str:
        return ".".join(self.stored_names.get(part, part) for part in name.split(".")) if self.stored_names else name
