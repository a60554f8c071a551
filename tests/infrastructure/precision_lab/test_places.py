"""A place is written as role:module:operation and read back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.events import Role
from infrastructure.precision_lab import Operation, Place, PlaceError

MODULE_NAMES = st.text().filter(lambda name: name == name.strip())


@given(st.sampled_from(Role), MODULE_NAMES, st.sampled_from(Operation))
def test_what_is_written_is_read_back(role: Role, module: str, operation: Operation) -> None:
    place = Place(role, module, operation)
    assert Place.parse(str(place)) == place


@given(st.text())
def test_any_text_is_a_place_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(PlaceError):
        assert str(Place.parse(text)) == text.strip()


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("policy", "role:module:operation"),
        ("policy:compute", "role:module:operation"),
        ("polcy:lm_head:compute", "role .*world_model, policy"),
        ("policy:lm_head:sum", "operation .*storage, compute, reduction"),
    ],
)
def test_an_error_names_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(PlaceError, match=remedy):
        Place.parse(text)


def test_outside_of_modules_the_name_is_empty() -> None:
    assert str(Place(Role.KL, "", Operation.REDUCTION)) == "kl::reduction"
