"""The child's answers where no search begins; searches are tested through the command."""

import os
from pathlib import Path

import pytest

from agents.se_darwin.command.child import ChildRequest, answer
from agents.se_darwin.edits import EditSpace


class Mute:
    pass


class Refusing:
    def __init__(self) -> None:
        raise RuntimeError("no\nluck")


class Exiting:
    def __init__(self) -> None:
        raise SystemExit(0)


class Failing:
    async def evolve_solution(self, problem: str, context: dict[str, object]) -> object:
        if problem == "deep":
            EditSpace("def f(x):\n    return " + " + ".join(["x"] * 900), "f")
        raise {"value": ValueError, "runtime": RuntimeError}[problem]("as told")


@pytest.mark.parametrize(
    ("entry_point", "problem", "refused", "code"),
    [
        ("no_such_module:A", "", "No module named 'no_such_module'", os.EX_CONFIG),
        (f"{__name__}:Mute", "", "does not evolve programs", os.EX_CONFIG),
        (f"{__name__}:Refusing", "", "RuntimeError: no luck", os.EX_CONFIG),
        (f"{__name__}:Exiting", "", "SystemExit", os.EX_CONFIG),
        (f"{__name__}:Failing", "value", "as told", os.EX_DATAERR),
        (f"{__name__}:Failing", "deep", "nested too deeply", os.EX_DATAERR),
        (f"{__name__}:Failing", "runtime", "as told", os.EX_UNAVAILABLE),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, entry_point: str, problem: str, refused: str, code: int
) -> None:
    request = ChildRequest(
        agent="a", entry_point=entry_point, folder=tmp_path, problem=problem, context={}
    )
    found = answer(request)
    assert (found.result, found.exit_code) == (None, code)
    assert refused in found.refused
    assert "\n" not in found.refused
