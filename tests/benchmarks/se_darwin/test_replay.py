"""The world model is useful: it finds repairs of unseen functions in fewer executions."""

from __future__ import annotations

import warnings
import zlib
from itertools import islice
from random import Random

import pytest

from agents.se_darwin.collection import TaskStream, survey_tasks
from agents.se_darwin.corpus import Subject, load_subjects
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import SPEC
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.search.ranker import SuspicionRanker
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.tasks import RepairTask
from benchmarks.se_darwin.replay import (
    ReplayTask,
    ShuffledRanker,
    mean_executions,
)
from infrastructure.world_model import WorldModel

pytestmark = pytest.mark.process

TRAINING_TRANSITIONS = 700
REPLAYED_TASKS = 9
# Functions of modules that are held out, with at most 250 candidates each: all of them are run.
REPLAYED = {
    *("calendar._monthlen", "calendar._nextmonth", "calendar._prevmonth", "calendar.isleap"),
    *("doctest._comment_line", "doctest._indent", "email.quoprimime.body_length"),
    *("email.quoprimime.header_length", "enum._is_dunder", "inspect.indentsize"),
    *("textwrap.shorten", "timeit.reindent", "traceback._byte_offset_to_character_offset"),
    *("unittest.util.three_way_cmp", "wsgiref.util.guess_scheme"),
}
TWO_FAULTS = """
def solve(items, limit):
    total = 1
    for item in items:
        if item < limit:
            total += item
    return total
"""
OWN_FAULTS = SEDarwinSettings(wide_fault_share=0.0, few_tests_share=0.0, two_edit_share=0.0)
CALLS = [(([1, 2, 3], 2), 3), (([], 5), 0), (([9, 1, 9], 8), 1), (([7, 7], 7), 14)]


def is_held_out(subject: Subject) -> bool:
    """Split by module, so that no related function is in the training data."""
    return zlib.crc32(subject.module.encode()) % 3 == 0


@pytest.fixture(scope="module")
def replayed(sandbox: Sandbox) -> list[ReplayTask]:
    subjects = tuple(subject for subject in load_subjects() if subject.name in REPLAYED)
    assert len(subjects) == len(REPLAYED)
    assert all(map(is_held_out, subjects))
    tasks = TaskStream(sandbox, Random(2), OWN_FAULTS, subjects=subjects)
    return [ReplayTask.execute(sandbox, task) for task in islice(tasks, REPLAYED_TASKS)]


def test_a_world_model_needs_fewer_executions_than_its_own_predictions_shuffled(
    sandbox: Sandbox, replayed: list[ReplayTask]
) -> None:
    subjects = tuple(subject for subject in load_subjects() if not is_held_out(subject))
    collected = survey_tasks(sandbox, Random(1), OWN_FAULTS, subjects=subjects)
    model = WorldModel(SPEC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fields that never vary in so little data
        model.fit(islice(collected, TRAINING_TRANSITIONS), epochs=6)
    repairable = [task for task in replayed if any(task.fixed)]
    with_model = mean_executions(repairable, model)
    shuffled = [
        mean_executions(repairable, ShuffledRanker(model, Random(seed))) for seed in range(10)
    ]
    assert with_model < 0.6 * sum(shuffled) / len(shuffled)  # 10 of 48
    assert with_model < min(shuffled)


def test_most_faults_have_a_repair_among_the_single_edits(replayed: list[ReplayTask]) -> None:
    assert sum(any(task.fixed) for task in replayed) >= 0.5 * len(replayed)


def test_executions_are_counted_up_to_the_first_repair() -> None:
    class InOrder:
        def success_chances(self, observation: object, actions: object) -> list[float]:
            return [0.2, 0.2, 0.1]

    for fixed, expected in (((False, True, True), 2), ((True, False, False), 1), ((False,) * 3, 3)):
        outcomes = tuple("fixed" if done else "same" for done in fixed)
        task = ReplayTask(name="any", observation={}, actions=({},) * 3, outcomes=outcomes)
        assert task.executions_to_repair(InOrder()) == expected


def test_a_shuffled_ranker_permutes(sandbox: Sandbox) -> None:
    broken = RepairTask(
        name="two_faults",
        function="solve",
        module=None,
        space=EditSpace(TWO_FAULTS, "solve"),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in CALLS),
    )
    task = ReplayTask.execute(sandbox, broken)
    chances = SuspicionRanker().success_chances(task.observation, task.actions)
    shuffled = ShuffledRanker(SuspicionRanker(), Random(0)).success_chances(
        task.observation, task.actions
    )
    assert sorted(shuffled) == sorted(chances)
    assert shuffled != chances
    assert not any(task.fixed)  # it takes two edits
