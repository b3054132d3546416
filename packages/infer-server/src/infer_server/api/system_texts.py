"""Texts of the system that clients write for a provider and not for a model."""

import re

# One line of `name=value;` pairs, of which one is another hash in each request.
_BILLING_HEADER = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w.-]+=[^;\n]*(?:;|$|(?=\n)))*\s*")


def without_billing_header(text: str) -> str:
    """Return a text of the system without the header with which Claude Code begins it.

    It is no instruction, and with it no two prompts would have the same beginning.
    """
    header = _BILLING_HEADER.match(text)
    return text[header.end() :] if header else text
