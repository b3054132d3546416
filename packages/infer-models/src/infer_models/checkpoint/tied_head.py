"""Whether a checkpoint's LM head is its embedding: as `config.json` says, corrected by the files.

says tied, both stored and different    two tables, with a warning: tied ones would change every logit
says tied, both stored and equal        tied
says nothing, one stored                tied, with a warning: there is no other number to compute with
says untied, one stored                 the other is missing, and the error says how to tie them
says tied, only the head stored         tied: it is the embedding too
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch

from infer_models.checkpoint.stored_tensors import Source
from infer_models.config import ModelConfig
from infer_models.weights import FLOATS

logger = logging.getLogger("infer_models")

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEAD_PART = "lm_head."
_PARTS = ("model.embed_tokens.", HEAD_PART)
"""Beginnings of the names of both weights' tensors, quantized or not."""
_BYTES_AT_ONCE = 32 << 20


def with_stored_head(config: ModelConfig, sources: Mapping[str, Source], *, is_untied: bool) -> ModelConfig:
    """Return `config` with `tie_word_embeddings` as the files have it; with `is_untied`, `config.json` says that it is.

    Raises:
        CheckpointError: a file cannot be read.
    """
    has_head, has_embedding = HEAD in sources, EMBEDDING in sources
    if config.tie_word_embeddings:
        if not (has_head and has_embedding) or _are_equal(sources[HEAD], sources[EMBEDDING]):
            return config
        logger.warning(
            "`tie_word_embeddings` is true, but the files hold another `%s` than `%s`: each is used for its own",
            HEAD,
            EMBEDDING,
        )
        return replace(config, tie_word_embeddings=False)
    parts = {name.rpartition(".")[0] for name in sources if name.startswith(_PARTS)}
    if is_untied or len(parts) != 1 or not (has_head or has_embedding):
        return config
    logger.warning(
        "`tie_word_embeddings` is not in config.json, and the files hold no `%s`: `%s` is used for both",
        *((EMBEDDING, HEAD) if has_head else (HEAD, EMBEDDING)),
    )
    return replace(config, tie_word_embeddings=True)


def with_shared_head(sources: Mapping[str, Source], *, is_tied: bool) -> Mapping[str, Source]:
    """Return `sources` with the head as the embedding, where the two are tied and only the head is stored."""
    if is_tied and HEAD in sources and EMBEDDING not in sources:
        return {**{name: each for name, each in sources.items() if name != HEAD}, EMBEDDING: sources[HEAD]}
    return sources


def _are_equal(head: Source, embedding: Source) -> bool:
    """Return whether two plain tables hold the same numbers, reading up to the first that differ."""
    shape = head.tensor.shape
    if shape != embedding.tensor.shape or not {head.tensor.dtype, embedding.tensor.dtype} <= set(FLOATS):
        return False
    rows_at_once = max(1, _BYTES_AT_ONCE // max(1, head.tensor.num_bytes // shape[0]))
    for first in range(0, shape[0], rows_at_once):
        count = min(rows_at_once, shape[0] - first)
        ours, theirs = (each.file.read(each.tensor.rows(first, count)) for each in (head, embedding))
        if not torch.equal(ours.float(), theirs.float()):
            return False
    return True
