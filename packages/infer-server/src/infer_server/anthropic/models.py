"""The served models in Anthropic's shape, for clients that name a version of its API."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

_VERSION_HEADER = "anthropic-version"


class MessageModel(msgspec.Struct, frozen=True, kw_only=True):
    """A served model. Both limits are the most tokens of prompt and answer together."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"


class MessageModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All served models, as one page."""

    data: list[MessageModel]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


def speaks_messages(headers: Mapping[str, str]) -> bool:
    """Return whether a request with these headers is one of a client of Anthropic's API."""
    return _VERSION_HEADER in headers


def message_model(name: str, *, created: int, max_seq_len: int) -> MessageModel:
    """Return the model `name`, which is served since the second `created` of Unix time."""
    return MessageModel(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC),
        max_input_tokens=max_seq_len,
        max_tokens=max_seq_len,
    )


def message_model_list(models: Sequence[MessageModel]) -> MessageModelList:
    """Return the list of `models`, of which there is at least one."""
    return MessageModelList(data=list(models), first_id=models[0].id, last_id=models[-1].id)
