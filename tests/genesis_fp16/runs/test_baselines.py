"""When a twin is queued, which run it repeats, and what it is."""

from collections.abc import Callable

import pytest

from genesis_fp16.domain.run import Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.runs.baselines import BaselineRuns
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store


@pytest.fixture
def finish(store: Store) -> Callable[..., Run]:
    """Let a run of agent "a", or the run given, end in a state."""

    def finish(
        run: Run | None = None, *, half: int = 100, state: RunState = RunState.SUCCEEDED
    ) -> Run:
        run = run or store.enqueue("a", first_seed=40)
        attempt = store.begin_attempt(run.id, f"incarnation-{run.id}")
        store.update_summary(run.id, RunSummary(steps=100, half_steps=half))
        store.end_attempt(attempt, Ending(), RunTransition(state=state), finished_at=store.now())
        return store.run(run.id)

    return finish


@pytest.fixture
def make_baselines(store: Store) -> Callable[[int], BaselineRuns]:
    return lambda every: BaselineRuns(store, Settings(baseline_every_runs=every))


def notify(baselines: BaselineRuns, run: Run) -> None:
    baselines.on_run_state(run.agent, run.id, run.state.value)
    baselines.tick()


def queued(store: Store) -> list[str | None]:
    return [run.baseline_of for run in store.unfinished()]


def test_every_third_run_in_half_precision_gets_a_twin(store, finish, make_baselines) -> None:
    baselines = make_baselines(3)
    for _ in range(2):
        notify(baselines, finish())
    assert queued(store) == []
    third = finish()
    notify(baselines, third)
    [twin] = store.unfinished()
    assert (twin.baseline_of, twin.seed, twin.trigger) == (third.id, third.seed, "baseline")
    for _ in range(2):
        notify(baselines, finish())
    notify(baselines, finish(twin, half=0))  # itself counts for nothing
    assert queued(store) == []
    sixth = finish()
    notify(baselines, sixth)
    assert queued(store) == [sixth.id]


@pytest.mark.parametrize("half", [0, 80])
def test_a_run_that_was_not_in_half_precision_gets_none(
    store, finish, make_baselines, half
) -> None:
    baselines = make_baselines(1)
    notify(baselines, finish(half=half))
    assert queued(store) == []


def test_a_run_that_failed_gets_none(store, finish, make_baselines) -> None:
    baselines = make_baselines(1)
    notify(baselines, finish(state=RunState.FAILED))
    assert queued(store) == []


def test_by_default_a_loss_is_noticed_within_20_runs(store, finish) -> None:
    """Six pairs show a true loss of 2 % with 95 % probability, see `benchmarks.baselines`."""
    settings = Settings()
    baselines = BaselineRuns(store, settings)
    for _ in range(settings.baseline_every_runs):
        assert queued(store) == []
        notify(baselines, finish())
    assert len(queued(store)) == 1
    assert 0 < settings.baseline_every_runs * 6 <= 20
    assert settings.guard_metric_drift < 0.02, "the mean of a true loss of 2 % lies below it often"


def test_never_with_0(store, finish, make_baselines) -> None:
    baselines = make_baselines(0)
    notify(baselines, finish())
    assert queued(store) == []


def test_a_new_daemon_continues_counting(store, finish, make_baselines) -> None:
    notify(make_baselines(2), finish())
    second = finish()
    notify(make_baselines(2), second)
    assert queued(store) == [second.id]
