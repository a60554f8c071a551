import ast

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.edits.edit import Edit, Site, read, swap, write


def changed(assignments) -> None:
    for slot, value in assignments():
        write(slot, value)


def test_slots_are_read_written_and_swapped() -> None:
    tree = ast.parse("f(a, b)", mode="eval")
    call = tree.body
    assert isinstance(call, ast.Call)
    changed(swap((call, "args", 0), (call, "args", 1)))
    assert ast.unparse(tree) == "f(b, a)"
    write((call, "func", None), ast.Name("g"))
    assert ast.unparse(tree) == "g(b, a)"
    assert read((call, "args", 1)).id == "a"


def test_a_site_replaces_its_node_or_a_field() -> None:
    tree = ast.parse("x = [1, 2]")
    values = tree.body[0].value
    site = Site(
        node=values.elts[1],
        parent=values,
        role="elts",
        index=1,
        ancestors=(values, tree.body[0], tree),
        scope=EditSpace("def solve():\n    pass", "solve").scope,
    )
    changed(site.set_field("value", 5))
    assert ast.unparse(tree) == "x = [1, 5]"
    changed(site.replace(lambda: ast.Name("y")))
    assert ast.unparse(tree) == "x = [1, y]"
    assert values.elts[1].lineno == 1, "the new node has the position of the old one"


def test_edits_are_equal_if_they_change_the_same() -> None:
    first = Edit(3, "constant", "1", "2", line=7, assign=list, path=("value",))
    again = Edit(3, "constant", "1", "2", line=9, assign=tuple, path=())
    assert first == again
    assert len({first, again}) == 1
    assert str(first) == "line 7: constant 1 -> 2"
