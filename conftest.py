"""How many examples property tests try: `default` in `nox -s tests`, `full` in `tests_full`, `long` in `tests_long`."""

import gc
import os

from hypothesis import settings

settings.register_profile("default", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.register_profile("long", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_finish() -> None:
    """Let full collections of garbage skip modules and thousands of collected tests, which takes most of a second."""
    gc.collect()
    gc.freeze()
