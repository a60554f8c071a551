from collections.abc import Callable

import pytest

from agents.se_darwin.edits import EditSpace

Repairs = Callable[[str, str], set[str]]


@pytest.fixture(scope="session")
def kinds_that_repair() -> Repairs:
    """Kinds of the single edits that make the second program of the first one.

    The function is ``solve``, or the method ``Box.solve`` if there is a class.
    """

    def find(broken: str, right: str) -> set[str]:
        function = "Box.solve" if "class Box" in broken else "solve"
        space, wanted = EditSpace(broken, function), EditSpace(right, function).source
        return {edit.kind for edit in space.edits if space.program([edit]) == wanted}

    return find
