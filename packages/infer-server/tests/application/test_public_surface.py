"""The public names of `infer_server`."""

import pytest

import infer_server


def test_public_names_are_these() -> None:
    assert sorted(infer_server.__all__) == ["ServerSettings", "create_app"]


def test_public_names_resolve() -> None:
    assert callable(infer_server.create_app)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="bogus"):
        _ = infer_server.bogus
