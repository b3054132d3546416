"""What all tests share: how many examples property tests try, which tests are left out, and fewer stops for garbage."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

settings.register_profile("default", max_examples=25, deadline=None)
settings.register_profile("long", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever only the long run takes, the quick one leaves out."""
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            item.add_marker(pytest.mark.full)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules are imported: a sixth of that time for almost none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let full collections of garbage skip modules and thousands of collected tests, which takes most of a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python free at its end what was left out of collections: Triton's bindings list what stays."""
    gc.unfreeze()
