"""How many examples property tests try: `default` in `nox -s tests`, `full` in `tests_full`, `long` in `tests_long`."""

import os

from hypothesis import settings

settings.register_profile("default", max_examples=25, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.register_profile("long", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
