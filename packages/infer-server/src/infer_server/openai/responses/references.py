"""The references of a body, `previous_response_id` and items of type `item_reference`, as items of its conversation.

What is not kept any more: a reference to reasoning is passed over, as the conversation is whole without it; any other
is refused, and the error says how to do without.
"""

from typing import Any

import msgspec
from msgspec import structs

from infer_server.errors import ApiError, missing, shorten
from infer_server.openai.responses.item_store import Item, ItemStore
from infer_server.openai.responses.request import ResolvedBody, ResponsesBody

_REFERENCE = "item_reference"
_REASONING_ID = "rs_"
_NO_REASONING: Item = {"type": "reasoning", "summary": []}


def resolved_body(body: ResponsesBody, store: ItemStore, *, owner: str | None) -> ResolvedBody:
    """Return `body` with the items that its `owner` refers to, which are read from `store`.

    Raises:
        ApiError: 400: one of them is not there.
    """
    previous = body.previous_response_id
    earlier = () if previous is None else tuple(_conversation(previous, store, owner))
    fields = structs.asdict(body)
    if isinstance(body.input, list):
        fields["input"] = [_resolved(item, f"input[{index}]", store, owner) for index, item in enumerate(body.input)]
    return ResolvedBody(**fields, earlier=earlier)


def keep_response(body: ResolvedBody, response_id: str, output: Any, store: ItemStore, *, owner: str | None) -> None:
    """Keep the conversation of `body` and the items of its `output` in `store`, unless the client wants none kept."""
    if body.store is not False:
        store.keep(response_id, [*body.earlier, *body.items], msgspec.to_builtins(output), owner=owner)


def _conversation(response_id: str, store: ItemStore, owner: str | None) -> list[Item]:
    kept = store.conversation(response_id, owner=owner)
    if kept is None:
        raise ApiError(
            400,
            f"`previous_response_id` is `{shorten(response_id, 80)}`, which is not kept here: only recent responses "
            "are, until a restart. Send the whole conversation as `input`.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return kept


def _resolved(item: Item, at: str, store: ItemStore, owner: str | None) -> Item:
    item_id = item.get("id")
    is_reference = item.get("type") == _REFERENCE or (item.get("type") is None and set(item) <= {"id", "type"})
    if not is_reference:
        return item
    if not isinstance(item_id, str):
        raise missing(f"{at}.id")
    found = store.item(item_id, owner=owner)
    if found is None and not item_id.startswith(_REASONING_ID):
        raise ApiError(
            400,
            f"`{at}` refers to `{shorten(item_id, 80)}`, which is not kept here: only items of recent responses are, "
            "until a restart. Send the item itself; clients do so where `store` is false.",
            code="item_not_found",
            param=at,
        )
    return _NO_REASONING if found is None else found
