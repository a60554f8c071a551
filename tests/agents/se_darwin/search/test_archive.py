from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import exp
from random import Random

import pytest

from agents.se_darwin.edits import Edit
from agents.se_darwin.sandbox import Execution
from agents.se_darwin.search.archive import NEUTRAL_SHARE, Archive
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


def test_weights_are_those_of_the_darwin_goedel_machine() -> None:
    archive = Archive(ROOT)
    better = program("better", 1, 1, 1, 0)
    archive.add(better, ROOT)
    archive.add(program("worse", 0, 0, 0, 0), ROOT)
    sigmoids = [1 / (1 + exp(-10 * (score - 0.5))) for score in (0.25, 0.75)]
    assert archive.weights() == pytest.approx([sigmoids[0] / 3, sigmoids[1]])


def test_neutral_moves_share_a_part_of_the_first_ones_weight() -> None:
    archive = Archive(ROOT)
    for number in range(4):
        archive.add(program(f"neutral {number}", 1, 0, 0, 0), ROOT)
    root, *neutral = archive.weights()
    assert sum(neutral) == pytest.approx(NEUTRAL_SHARE * root)


def test_exhausted_members_are_not_selected() -> None:
    archive = Archive(ROOT)
    better = program("better", 1, 1, 1, 0)
    archive.add(better, ROOT)
    archive.exhaust(better)
    assert {archive.choose_parent(Random(seed)) for seed in range(20)} == {ROOT}
    archive.exhaust(ROOT)
    assert archive.choose_parent(Random(0)) is None


def test_parents_are_drawn_by_weight() -> None:
    archive = Archive(ROOT)
    archive.add(program("better", 1, 1, 1, 0), ROOT)
    rng = Random(0)
    drawn = Counter(archive.choose_parent(rng).source for _ in range(500))
    weights = archive.weights()
    assert drawn["better"] / 500 == pytest.approx(weights[1] / sum(weights), abs=0.05)


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


def test_a_mate_passes_what_the_parent_fails() -> None:
    archive = Archive(ROOT)
    first, second = program("first", 1, 1, 0, 0), program("second", 1, 0, 1, 0)
    archive.add(first, ROOT)
    assert archive.choose_mate(Random(0), first) is None
    archive.add(second, ROOT)
    assert archive.choose_mate(Random(0), first) is second


def test_a_mate_contributes_edits_and_passed_tests() -> None:
    archive = Archive(ROOT)
    parent = program("parent", 1, 1, 0, 0)
    archive.add(parent, ROOT)
    archive.add(program("passes nothing more", 1, 0, 0, 0), ROOT)
    assert archive.choose_mate(Random(0), parent) is None
    other = program("other", 0, 0, 1, 1)
    archive.add(other, ROOT)
    heir = replace(parent, edits=parent.edits | other.edits)
    archive.add(heir, parent)
    assert archive.choose_mate(Random(0), heir) is None, "it has all of the other's edits"


def test_mates_are_drawn_by_weight() -> None:
    archive = Archive(ROOT)
    parent = program("parent", 1, 0, 0, 0)
    good, poor = program("good", 0, 1, 1, 1), program("poor", 0, 1, 0, 0)
    for each in (parent, good, poor):
        archive.add(each, ROOT)
    rng = Random(0)
    drawn = Counter(archive.choose_mate(rng, parent).source for _ in range(300))
    weights = dict(zip((m.source for m in archive.members), archive.weights(), strict=True))
    expected = weights["good"] / (weights["good"] + weights["poor"])
    assert drawn["good"] / 300 == pytest.approx(expected, abs=0.05)
    assert expected > 0.9
