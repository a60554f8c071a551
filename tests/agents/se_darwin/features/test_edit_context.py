from __future__ import annotations

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features.edit_context import CONTEXT_NUMBERS, EditContext

SOURCE = """
def f(path, start, wanted):
    found = path.find('x')
    spare = start
    if found > 0:
        found = wanted
    return path.upper() + path[found:] + wanted[start:]
"""


@pytest.fixture(scope="module")
def space() -> EditSpace:
    return EditSpace(SOURCE, "f")


def numbers(space: EditSpace, old: str, new: str, line: int) -> dict[str, float]:
    edit = next(e for e in space.edits if (e.old, e.new, e.line) == (old, new, line))
    return dict(zip(CONTEXT_NUMBERS, EditContext(space).describe(edit, [new]), strict=True))


def test_every_edit_has_every_number(space: EditSpace) -> None:
    context = EditContext(space)
    for edit in space.edits:
        assert len(context.describe(edit, [])) == len(CONTEXT_NUMBERS)


def test_a_name_fits_where_it_is_used_alike_elsewhere(space: EditSpace) -> None:
    sliced = numbers(space, "path", "wanted", 6)
    assert sliced["new_fits"] == 1.0  # wanted[...] stands on the same line
    assert sliced["old_fits"] == 0.0  # path.upper() and path[found:] are different uses
    assert numbers(space, "path", "start", 2)["new_fits"] == 0.0


def test_reads_and_assignments_are_those_before_the_line(space: EditSpace) -> None:
    late = numbers(space, "start", "found", 3)
    assert (late["old_is_parameter"], late["new_is_parameter"]) == (1.0, 0.0)
    assert (late["new_assigned_before"], late["old_assigned_before"]) == (1.0, 1.0)
    early = numbers(space, "path", "spare", 2)
    assert early["new_assigned_before"] == 0.0
    assert early["new_is_unread"] == 1.0


def test_an_assigned_value_that_is_not_read_is_reported(space: EditSpace) -> None:
    assert numbers(space, "wanted", "spare", 5)["new_value_is_unread"] == 1.0
    assert numbers(space, "wanted", "found", 5)["new_value_is_unread"] == 0.0


def test_tokens_of_other_kinds_are_counted(space: EditSpace) -> None:
    edit = next(e for e in space.edits if e.kind == "constant" and e.new == "1")
    made = dict(zip(CONTEXT_NUMBERS, EditContext(space).describe(edit, []), strict=True))
    assert made["old_elsewhere"] > 0.0 == made["new_elsewhere"]
    assert made["old_reads"] == made["name_similarity"] == 0.0


def test_similar_names_are_distinguished_from_others(space: EditSpace) -> None:
    other = EditSpace("def f(left_end, right_end, x):\n    return left_end + right_end - x", "f")
    near = numbers(other, "left_end", "right_end", 2)["name_similarity"]
    far = numbers(other, "left_end", "x", 2)["name_similarity"]
    assert near > 0.5 > far
