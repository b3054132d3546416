"""The fields that say how to sample, and the `SamplingParams` that the fields of any body make.

Bodies have them as `SamplingParams` declares them. A field that has the name of one of `SamplingParams` means the same.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec

from infer_engine.protocol import SamplingParams
from infer_engine.protocol.request_fields import Api, with_fields
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_server.api.fields import described
from infer_server.api.foreign_fields import ForeignFields
from infer_server.api.shared_fields import ModelId
from infer_server.api.validation import refused_value

B = TypeVar("B", bound=msgspec.Struct)
_SAME_NAMED = tuple(name for name, field in SAMPLING_FIELDS.items() if field.apis)


class SamplingFields(ForeignFields, frozen=True, kw_only=True):
    """The fields that all of OpenAI's APIs have here beside those about sampling."""

    model: ModelId = None
    stream: Annotated[
        bool | None, described("Send events as tokens are made; if left out, the `Accept` header decides.")
    ] = None


def with_sampling_fields(api: Api) -> Callable[[type[B]], type[B]]:
    """Return a decorator that gives a body the fields that `SamplingParams` declares for an `api`."""
    types = {
        name: Annotated[field.json_type | None, described(field.sentence, **field.json_schema)]
        for name, field in SAMPLING_FIELDS.items()
        if api in field.apis
    }
    return with_fields(types)


def sampling_params(
    body: msgspec.Struct, *, names: Mapping[str, str] = MappingProxyType({}), **others: Any
) -> SamplingParams:
    """Return the sampling parameters of `body`: its fields that `SamplingParams` has too, and `others`.

    Args:
        body: what the client sent; null is the same as leaving a field out.
        names: names that fields of `SamplingParams` have in the body, where they differ, for the messages of errors.
        **others: fields of `SamplingParams` that are in no field of the body, or not in the same form.

    Raises:
        ApiError: 400, `invalid_value`: a value is out of range.
    """
    given = {name: value for name in _SAME_NAMED if (value := getattr(body, name, None)) is not None}
    try:
        return SamplingParams(**given | others)
    except ValueError as error:
        raise refused_value(error, names=names) from None
