import pytest

from agents.se_darwin.edits import EditSpace


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        ("string", "return f'{a:.1f}'", "return f'{a:.2f}'"),
        ("string", "return f'{a:>{b}}{a:02d}'", "return f'{a:>{b}}{a:03d}'"),
        ("string", "return f'{a:.2f}'", "return f'{a}'"),
        ("string", "return f'{a}'", "return f'{a:02d}'"),
        ("string", "return f'{a}'", "return f'{a!r}'"),
        ("string", "return f'{a!s}'", "return f'{a}'"),
        ("string", "return f'{a}{b}'", "return f'{a}, {b}'"),
        ("string", "return f'{a}-{b}'", "return f'{a}{b}'"),
        ("string", "return f'{a}-{b}'", "return f'{a}: {b}'"),
        ("string", "return f'{a} Items'", "return f'{a} items'"),
        ("value_replaced", "return f'{a}.{b}'", "return f'{a}.{0}'"),
        ("offset", "return f'{a}.{b}'", "return f'{a}.{b + 1}'"),
        ("string", "return a.strftime('%Y-%M-%d')", "return a.strftime('%Y-%m-%d')"),
        ("string", "return a.strftime('%Y-%d-%m')", "return a.strftime('%Y-%m-%d')"),
        ("string", "return open(a, 'a')", "return open(a, 'w')"),
        ("string", "return a.open(mode='r')", "return a.open(mode='rb')"),
    ],
)
def test_texts_with_a_structure_are_edited(
    kinds_that_repair, kind: str, broken: str, right: str
) -> None:
    frame = "def solve(a, b):\n    {}"
    assert kind in kinds_that_repair(frame.format(broken), frame.format(right))


def test_a_format_with_fields_of_its_own_is_left() -> None:
    edits = EditSpace("def solve(a, b):\n    return f'{a:>{b}}'", "solve").edits
    assert not [each for each in edits if each.old.startswith("field :>")]


def test_a_format_of_a_huge_width_is_left() -> None:
    edits = EditSpace("def solve(a):\n    return f'{a:" + 5000 * "9" + "}'", "solve").edits
    assert [each.new for each in edits if each.old.startswith("field :")] == [":"]
