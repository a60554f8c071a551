from __future__ import annotations

import pytest

from infrastructure.agent_contract.agent import AGENT_NAME, Agent, InsufficientDataError


@pytest.mark.parametrize(
    ("name", "valid"),
    [("a", True), ("se-darwin", True), ("a" * 32, True), ("a" * 33, False), ("9a", False)],
)
def test_names_have_one_form(name, valid):
    assert bool(AGENT_NAME.fullmatch(name)) is valid
    assert not AGENT_NAME.fullmatch(name.upper())


def test_too_little_data_is_counted():
    error = InsufficientDataError("groups", 3, 20)
    assert (error.what, error.got, error.needed) == ("groups", 3, 20)
    assert str(error).startswith("3 groups recorded, 20")


def test_an_object_without_the_methods_is_not_an_agent():
    assert not isinstance(object(), Agent)
