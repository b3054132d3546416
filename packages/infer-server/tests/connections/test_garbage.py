"""Searches for reference cycles while the server serves, and after."""

import gc

from infer_server.connections.garbage import rare_collections


def test_what_exists_is_left_out_and_collections_are_rarer_until_the_end() -> None:
    gc.unfreeze()  # what was left out for the tests
    before = gc.get_threshold(), gc.get_freeze_count()
    with rare_collections():
        assert gc.get_threshold()[0] > before[0][0]
        assert gc.get_freeze_count() > before[1]
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
