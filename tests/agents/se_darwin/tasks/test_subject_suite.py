from __future__ import annotations

from random import Random

import pytest

from agents.se_darwin.corpus import Subject, load_subjects
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.tasks import SubjectSuite

SUBJECTS = {subject.name: subject for subject in load_subjects()}


def build(sandbox: Sandbox, name: str, seed: int = 0) -> SubjectSuite:
    suite = SubjectSuite.build(sandbox, SUBJECTS[name], Random(seed))
    assert suite is not None
    return suite


@pytest.mark.parametrize("name", ["heapq.heappop", "bisect.bisect_left", "statistics.median"])
def test_the_original_passes_and_the_broken_program_fails(sandbox: Sandbox, name: str) -> None:
    suite = build(sandbox, name)
    task = suite.inject(sandbox, Random(0))
    assert task is not None
    original, broken = task.evaluate(
        sandbox, [(frozenset(), suite.space.source), (frozenset(), task.space.source)]
    )
    assert original.fixed
    assert not broken.fixed
    assert task.hidden_pass_rate(sandbox, suite.space.source) == 1.0
    assert task.space.source != suite.space.source


def test_functions_written_for_the_corpus_need_no_library(sandbox: Sandbox) -> None:
    written = [subject for subject in SUBJECTS.values() if subject.library is None]
    assert len(written) >= 40
    unusable = [
        subject.name
        for subject in written
        if SubjectSuite.build(sandbox, subject, Random(0)) is None
    ]
    assert unusable == []


def test_few_tests_are_some_of_the_visible_ones(sandbox: Sandbox) -> None:
    suite = build(sandbox, "bisect.bisect_left")
    few = suite.with_tests(Random(0), 5)
    assert len(few.tests) == 5
    assert set(map(repr, few.tests)) < set(map(repr, suite.tests))
    assert not set(map(repr, few.tests)) & set(map(repr, few.hidden_tests))


def test_arguments_changed_in_place_are_part_of_the_oracle(sandbox: Sandbox) -> None:
    suite = build(sandbox, "heapq.heapify")
    assert {test.expected for test in suite.tests} == {"None"}
    task = suite.inject(sandbox, Random(0))
    assert task is not None


def test_the_same_seed_gives_the_same_task(sandbox: Sandbox) -> None:
    faults = []
    for seed in (1, 1, 2):
        task = build(sandbox, "textwrap.dedent", seed).inject(sandbox, Random(seed))
        assert task is not None
        faults.append((task.fault, task.tests))
    assert faults[0] == faults[1] != faults[2]


def test_two_faults_are_two_edits(sandbox: Sandbox) -> None:
    task = build(sandbox, "colorsys.rgb_to_hls").inject(sandbox, Random(0), edits=2)
    assert task is not None
    assert task.fault.count(";") == 1


def test_hidden_tests_are_others_than_the_visible(sandbox: Sandbox) -> None:
    suite = build(sandbox, "bisect.bisect_right")
    visible = {repr(test.arguments) for test in suite.tests}
    assert len(visible) == len(suite.tests)
    assert suite.hidden_tests
    assert not visible & {repr(test.arguments) for test in suite.hidden_tests}


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    while True:\n        pass",
        "def f(x):\n    return object()",
        "import time\ndef f(x):\n    return time.perf_counter_ns()",
        "def f(x):\n    return missing",
        "def f(x):\n    return 1",
        "def f(x):\n    raise ValueError",
    ],
    ids=["hangs", "incomparable", "not deterministic", "no helper", "constant", "only raises"],
)
def test_a_subject_without_a_usable_oracle_is_dropped(sandbox: Sandbox, source: str) -> None:
    subject = Subject(
        module="heapq", function="f", source=source, generate=lambda rng: (rng.random(),)
    )
    assert SubjectSuite.build(sandbox, subject, Random(0)) is None
