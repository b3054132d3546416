"""The names under which the model is served."""

from collections.abc import Collection


def served_name(model: str | None, served_models: Collection[str]) -> str:
    """Return the name of the served model that a body means: the one that it names, else the first."""
    return model if model is not None and model in served_models else next(iter(served_models))
