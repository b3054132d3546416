"""Writes the pages of `docs/coverage` from their rows and from the tests that say which rows they cover."""
