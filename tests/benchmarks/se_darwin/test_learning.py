from random import Random

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import NUMBERS
from agents.se_darwin.sandbox import TestCase
from agents.se_darwin.tasks import RepairTask
from benchmarks.se_darwin.bugs import Bug
from benchmarks.se_darwin.dataset import ExecutedBug
from benchmarks.se_darwin.learning import make_fold
from benchmarks.se_darwin.replay import ReplayTask

FOLD_OF = {f"module{number}": number % 4 for number in range(16)}
HELD_OUT = 2
HELD_OUT_SIZE, HELD_OUT_SCORE = 1e6, 0.75


def _case(module, number):
    """A bug of *module*; what the held-out ones look like and lead to is seen nowhere else."""
    held_out, rng = FOLD_OF[module] == HELD_OUT, Random(f"{module}/{number}")
    action = {"operator": "revision", "kind": "several", "tokens": module}
    observation = {"pass_rate": rng.random(), "edits_so_far": 0.0, "unfinished": rng.random()}
    replay = ReplayTask(
        name=f"{module}.f{number}",
        observation=observation
        | {"size": HELD_OUT_SIZE if held_out else rng.random(), "symptoms": module},
        actions=tuple(action | {"numbers": [rng.random()] * len(NUMBERS)} for _ in range(4)),
        outcomes=("worse", "better", "better", "fixed") if held_out else ("worse", "fixed") * 2,
        deltas=tuple(HELD_OUT_SCORE if held_out else -rng.random() for _ in range(4)),
    )
    task = RepairTask(
        name=replay.name,
        function="f",
        module=None,
        space=EditSpace("def f(x):\n    return x + 1", "f"),
        tests=(TestCase.returning((1,), 1),),
    )
    return ExecutedBug(
        bug=Bug(family="one edit", kind="one edit", module=module, task=task), replay=replay
    )


@pytest.fixture(scope="module")
def cases():
    return [_case(module, number) for module in FOLD_OF for number in range(3)]


@pytest.fixture(scope="module")
def fold(cases):
    return make_fold(cases, FOLD_OF, HELD_OUT)


def test_no_held_out_module_is_trained_or_calibrated_on(fold):
    held_out = {module for module, number in FOLD_OF.items() if number == HELD_OUT}
    assert set(fold.data.test.groups) == held_out
    assert {case.bug.module for case in fold.test} == held_out
    learned = [fold.data.train, fold.data.calibration]
    for part in learned:
        assert part.groups
        assert not held_out & set(part.groups)
        assert not any(t.observation["size"] == HELD_OUT_SIZE for t in part.transitions)
    assert not set(learned[0].groups) & set(learned[1].groups)
    assert {case.bug.module for case in fold.calibration} == set(learned[1].groups)


def test_every_case_is_in_one_part(fold, cases):
    sizes = [len(part.transitions) for part in fold.data.parts.values()]
    assert sum(sizes) == sum(len(case.replay.actions) for case in cases)
    assert len(fold.test) + len(fold.calibration) < len(cases)


def test_the_encoder_was_fitted_without_held_out_modules(fold):
    """Statistics, label frequencies and moments of targets are of what is trained on."""
    statistics = fold.data.encoder.to_json()["standardisers"]["observation.size"]
    assert statistics["high"][0] < 1.0
    codec = fold.data.codec
    assert codec.standardisers["score_delta"].high[0] <= 0.0
    assert codec.frequencies["outcome"][codec.labels("outcome").index("better")] < 0.01
