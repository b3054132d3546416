"""The fields that say how to sample, and the `SamplingParams` that the fields of any body make.

A field that has the name of one of `SamplingParams` means the same: adding it to a body is all that it takes.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import MAX_STOP_CHARACTERS
from infer_server.api.fields import described
from infer_server.api.foreign_fields import ForeignFields
from infer_server.api.shared_fields import ModelId
from infer_server.api.validation import refused_value

Temperature = Annotated[
    float | None, described("0 always takes the most probable token; 1 if left out.", minimum=0, maximum=100)
]
TopP = Annotated[
    float | None,
    described(
        "Sample from the most probable tokens that hold this much probability; 1 if left out, 0 is greedy.",
        minimum=0,
        maximum=1,
    ),
]
TopK = Annotated[int | None, described("Sample from this many most probable tokens; 0 and -1: from all.", minimum=-1)]
StopString = Annotated[str, described("A text.", maxLength=MAX_STOP_CHARACTERS)]

_OTHER_FORMS = frozenset(
    {"max_tokens", "logprobs", "prompt_logprobs", "logit_bias", "structured_outputs", "thinking_token_budget"}
)
"""Fields that bodies write in other ways than `SamplingParams`, or limit in other ways."""


class SamplingFields(ForeignFields, frozen=True, kw_only=True):
    """The fields about sampling and streaming that all of OpenAI's APIs have here."""

    model: ModelId = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: Annotated[
        float | None,
        described("Drop tokens less probable than this times the most probable one.", minimum=0, maximum=1),
    ] = None
    seed: Annotated[
        int | None, described("The same seed gives the same tokens; -1: none.", minimum=-(2**63), maximum=2**63 - 1)
    ] = None
    stream: Annotated[
        bool | None, described("Send events as tokens are made; if left out, the `Accept` header decides.")
    ] = None


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
    given = {name: value for name in _same_named(type(body)) if (value := getattr(body, name)) is not None}
    try:
        return SamplingParams(**given | others)
    except ValueError as error:
        raise refused_value(error, names=names) from None


@functools.cache
def _same_named(body: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields of a `body` that `SamplingParams` has in the same form."""
    wanted = set(SamplingParams.__struct_fields__) - _OTHER_FORMS
    return tuple(name for name in body.__struct_fields__ if name in wanted)
