"""A prompt that ends in the middle of its last message, as `continue_final_message` of `transformers` makes it."""

from collections.abc import Sequence

from infer_models.text.chat.templates.template import ChatTemplateError, Message

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def with_open_end(messages: Sequence[Message]) -> list[Message]:
    """Return `messages` with a tag after the text of the last one."""
    *before, last = messages
    return [*before, {**last, "content": f"{last.get('content') or ''}{_TAG}"}]


def up_to_open_end(text: str) -> str:
    """Return the text that a template wrote before the tag.

    Raises:
        ChatTemplateError: it did not write the last message.
    """
    place = text.rfind(_TAG.strip())
    if place < 0:
        raise ChatTemplateError(
            "the chat template leaves out the last message, so it cannot be continued; end with the user's."
        )
    # A template that trims messages trims the space after the tag.
    return text[:place] if text.startswith(_TAG, place) else text[:place].rstrip()
