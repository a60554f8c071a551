from agents.se_darwin.edits import EDIT_KINDS, EditSpace
from benchmarks.se_darwin.mining.space import candidates, table


def test_the_table_counts_the_edits_of_each_kind() -> None:
    programs = [("def f(a):\n    return a < 1", "f"), ("def g(b):\n    return b", "g")]
    number, kinds = candidates(programs)
    edits = [edit for program in programs for edit in EditSpace(*program).edits]
    assert number == 2
    assert kinds.total() == len(edits)
    assert kinds["comparison"] == sum(edit.kind == "comparison" for edit in edits) > 4
    rows = table(number, kinds)
    assert len(rows) == 3 + len(EDIT_KINDS)
    assert rows[-1] == f"| all {len(EDIT_KINDS)} | {len(edits) / 2:.1f} | 100 |"
