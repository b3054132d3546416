"""How hard property tests try: `default` within CI's time, `long` in the nox session `tests_long`."""

import os

from hypothesis import settings

settings.register_profile("default", max_examples=200, deadline=None)
settings.register_profile("long", max_examples=3000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
