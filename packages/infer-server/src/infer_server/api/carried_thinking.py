"""Thinking as an opaque text that a client keeps beside an answer and sends back, and that is read again here.

It is encoded and no secret: whoever has it has had the answer. So it outlives a restart, and any server of this kind
reads it.
"""

import base64
import binascii

_MARK = "infer1."


def carried_thinking(text: str) -> str:
    """Return what carries the thinking `text`; it is never empty."""
    return _MARK + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode("ascii")


def thinking_in(carried: object) -> str:
    """Return the thinking that `carried` has; "" if it was not made here, as another provider's signatures are not."""
    if not isinstance(carried, str) or not carried.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(carried.removeprefix(_MARK), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
