"""Reads the sampling defaults of a model from its `generation_config.json`, and says in the log what it took."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infer_engine.protocol import EngineConfig, SamplingDefaults, SamplingParams
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_models.config.generation_config import read_generation_fields

logger = logging.getLogger(__name__)


def sampling_defaults(config: EngineConfig, folder: Path) -> SamplingDefaults:
    """Return the defaults of the model in `folder`, or none if the configuration says so.

    Raises:
        CheckpointError: the file is damaged.
    """
    if config.generation_config != "auto":
        return SamplingDefaults()
    fields = read_generation_fields(folder)
    defaults = SamplingDefaults(**_checked(_in_our_words(fields.taken), fields.source))
    if defaults.given:
        said = ", ".join(f"{name} {value:g}" for name, value in defaults.given.items())
        # A warning, as it changes answers: `SamplingParams` of a program are taken as they are.
        message = "Requests that do not say how get %s of %s; `generation_config` `none` stops that"
        logger.warning(message, said, fields.source)
    for name, value in fields.untaken.items():
        logger.warning("`%s` of %s is %r, which is not taken", name, fields.source, value)
    return defaults


def _in_our_words(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields under the names and with the values of `SamplingParams`."""
    values = {
        name: _number(fields[field.key]) for name, field in SAMPLING_FIELDS.items() if field.key and field.key in fields
    }
    if values.get("top_k") in (0, -1):
        del values["top_k"]
    if fields.get("do_sample") is False:
        values["temperature"] = 0.0
    return values


def _number(value: object) -> object:
    """Return a number that is whole as an integer, which JSON's writers may spell `20.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the values that a request may have; of others the log has a warning."""
    kept = {}
    for name, value in values.items():
        try:
            SamplingParams(**{name: value})
        except ValueError as error:
            logger.warning("A value of %s is not taken: %s", source, error)
        else:
            kept[name] = SAMPLING_FIELDS[name].json_type(value)
    return kept
