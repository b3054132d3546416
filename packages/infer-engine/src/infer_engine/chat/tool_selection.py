"""A grammar of the arguments of several tools is told here which tool is meant."""


def selection_of(tool_name: str) -> str:
    """Return the text with which the grammar begins for a tool; no other tool's begins with it."""
    return f"{tool_name} "
