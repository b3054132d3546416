"""Refuses models that do not write text: classifiers, reward models, and models without a head."""

import re
from collections.abc import Collection
from pathlib import Path

from infer_models.checkpoint.spare_tensors import HEADS_OF_JUDGES
from infer_models.checkpoint.tied_head import HEAD_PART
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError

_JUDGE = re.compile(r"\w*(?:Classification|QuestionAnswering|Regression|Reward(?:Model)?)")
_WITHOUT_HEAD = re.compile(r"\w*(?<!LMHead)Model")
"""Classes, of `transformers` and of others, that have no LM head."""


def refuse_models_that_do_not_write(config: JsonFields, names: Collection[str], *, origin: Path) -> None:
    """Raise if the tensors `names` have no LM head, and what the configuration or they say is no model that writes.

    Raises:
        CheckpointError: so it is.
    """
    if any(name.startswith(HEAD_PART) for name in names):
        return
    for architecture in config.texts("architectures") if "architectures" in config else ():
        if _JUDGE.fullmatch(architecture):
            what = "a classifier or a reward model"
        elif _WITHOUT_HEAD.fullmatch(architecture):
            what = "a model without a head, as for embeddings"
        else:
            continue
        raise CheckpointError(
            f"{config.path}: `architectures` is `{architecture}`, {what}, and the files hold no LM head: it is no "
            "model that writes text."
        )
    other = next((name for name in sorted(names) if name.partition(".")[0] in HEADS_OF_JUDGES), None)
    if other is not None:
        raise CheckpointError(
            f"{origin}: the files hold `{other}` and no LM head: it is a classifier and no model that writes text."
        )
