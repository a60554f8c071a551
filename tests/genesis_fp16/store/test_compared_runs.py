"""Which runs are compared, and with which."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from genesis_fp16.domain.run import Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store

Finish = Callable[..., Run]


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def store(any_settings: Settings, clock: list[float]) -> Iterator[Store]:
    with closing(new_store(any_settings, clock=lambda: clock[0])) as store:
        yield store


@pytest.fixture
def finish(store: Store, clock: list[float]) -> Finish:
    """Queue a run, or the baseline of one, and end it; a second later each time."""

    def finish(
        twin_of: Run | None = None, state: RunState = RunState.SUCCEEDED, **summary: object
    ) -> Run:
        clock[0] += 1
        run = store.enqueue_baseline(twin_of) if twin_of else store.enqueue("a", first_seed=5)
        attempt = store.begin_attempt(run.id, run.id)
        assert attempt is not None
        known = {"primary_metric": "mse", "primary_value": 0.5, "higher_is_better": False}
        known |= {"steps": 100, "half_steps": 0 if twin_of else 100}
        store.update_summary(run.id, RunSummary(**{**known, **summary}))
        ending, verdict = Ending(exit_code=0), RunTransition(state=state)
        store.end_attempt(attempt, ending, verdict, finished_at=clock[0])
        return run

    return finish


def test_a_baseline_has_the_number_and_the_seed_of_its_run(store: Store, finish: Finish) -> None:
    first, second = finish(), finish()
    twin = finish(twin_of=second)
    assert (twin.number, twin.seed, twin.trigger) == (second.number, second.seed, "baseline")
    assert (first.number, second.number, finish().number) == (1, 2, 3), "a twin is not counted"


def test_pairs_are_runs_and_their_baselines(store: Store, finish: Finish) -> None:
    finish()
    first = finish(primary_value=0.7)
    finish(twin_of=first, primary_value=0.6)
    second = finish()
    finish(twin_of=second)
    pairs = store.compared.pairs("a")
    assert [(pair.half_run, pair.half, pair.fp32) for pair in pairs] == [
        (first.id, 0.7, 0.6),
        (second.id, 0.5, 0.5),
    ]
    assert (pairs[0].metric, pairs[0].higher_is_better) == ("mse", False)
    assert [pair.half_run for pair in store.compared.pairs("a", since=104.0)] == [second.id]
    assert store.compared.pairs("b") == []


@pytest.mark.parametrize(
    ("half", "twin"),
    [
        ({"half_steps": 80}, {}),  # rolled back on the way
        ({}, {"half_steps": 1}),
        ({"state": RunState.FAILED}, {}),
        ({}, {"state": RunState.FAILED}),
        ({}, {"primary_value": None}),
        ({}, {"primary_metric": "mae"}),
        ({"higher_is_better": None}, {}),
    ],
)
def test_incomparable_runs_are_left_out(store: Store, finish: Finish, half, twin) -> None:
    finish(twin_of=finish(**half), **twin)
    assert store.compared.pairs("a") == []


def test_a_half_metric_that_is_not_finite_is_compared(store: Store, finish: Finish) -> None:
    finish(twin_of=finish(primary_value=None))
    [pair] = store.compared.pairs("a")
    assert math.isnan(pair.half)


def test_results_name_the_precision_of_the_training(store: Store, finish: Finish) -> None:
    finish(precision={"reason": "default"})
    finish(half_steps=89)
    finish(half_steps=0, precision={"reason": "canary"})
    finish(steps=0, half_steps=0)
    finish(state=RunState.FAILED)
    assert [(o.number, o.precision, o.reason) for o in store.compared.results("a")] == [
        (3, "fp32", "canary"),
        (2, "mixed", ""),
        (1, "half", "default"),
    ]
    assert [o.number for o in store.compared.results("a", limit=1)] == [3]
