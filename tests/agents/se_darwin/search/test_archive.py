from __future__ import annotations

from agents.se_darwin.edits import Edit
from agents.se_darwin.sandbox import Execution
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.tasks.evaluation import Evaluation


def program(name: str, *passed: int, edits: int = 1) -> Evaluation:
    made = frozenset(
        Edit(number, "constant", name, "x", 1, tuple, ())  # type: ignore[arg-type]
        for number in range(edits)
    )
    return Evaluation(
        edits=made,
        source=name,
        passed=tuple(map(bool, passed)),
        execution=Execution(outputs=(), end="exit"),
        symptoms=(),
    )


ROOT = program("root", 1, 0, 0, 0, edits=0)


def test_all_but_worse_candidates_are_kept() -> None:
    archive = Archive(ROOT)
    assert archive.add(program("better", 1, 1, 0, 0), ROOT)
    assert archive.add(program("other tests", 0, 0, 1, 0), ROOT)
    assert archive.add(program("neutral", 1, 0, 0, 0), ROOT)
    assert not archive.add(program("worse", 0, 0, 0, 0), ROOT)
    assert [member.source for member in archive.members] == [
        "root",
        "better",
        "other tests",
        "neutral",
    ]


def test_sources_and_edits_are_registered_once() -> None:
    archive = Archive(ROOT)
    edits = program("other", 1, 1, 1, 1).edits
    assert not archive.is_untried(ROOT.edits)
    assert not archive.register(frozenset(), "root")
    assert archive.is_untried(edits)
    assert archive.register(edits, "other")
    assert not archive.is_untried(edits)
    assert not archive.register(edits, "other")


def test_the_best_has_the_highest_score_and_the_fewest_edits() -> None:
    archive = Archive(ROOT)
    archive.add(program("long", 1, 1, 0, 0, edits=3), ROOT)
    archive.add(program("short", 1, 0, 1, 0, edits=1), ROOT)
    assert archive.best.source == "short"
