"""Runs with files, as a retention finds them; not a test."""

import itertools
from collections.abc import Sequence

from genesis_fp16.domain.run import Ending, Run, RunState, RunTransition
from genesis_fp16.runs.retention import Retention
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

KEPT = ["attempts/1/events.ndjson", "attempts/1/worker.log", "attempts/1/spec.json"]
KEPT += ["snapshot.json", "profile/trace.json"]
WEIGHTS = ["checkpoints/step-0000000001.pt", "checkpoints/step-0000000001.shards-ab/rank-0"]
WEIGHTS += ["checkpoints.set-aside-1/step-0000000001.pt", "best-epoch.pt", ".best-epoch.pt.0a1b"]
WEIGHTS += ["at-start/published/model.safetensors"]
DAY_SECONDS = 86400.0


class Clock:
    """Unix time, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now

    def pass_days(self, days: float) -> None:
        self.now += days * DAY_SECONDS


class Runs:
    """Runs in a real store, with real files."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self.settings, self.store, self.clock = settings, store, clock
        self.folder = settings.home.absolute() / "runs"

    def write(self, run: Run, names: Sequence[str] = (*KEPT, *WEIGHTS)) -> Run:
        for name in names:
            path = self.folder / run.id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 100)
        return run

    def end(
        self,
        agent: str = "a",
        run: Run | None = None,
        names: Sequence[str] = (*KEPT, *WEIGHTS),
        **verdict: RunState,
    ) -> Run:
        run = run or self.store.enqueue(agent, first_seed=0)
        attempt = self.store.begin_attempt(run.id, f"incarnation-{run.id}")
        assert attempt is not None
        self.write(run, names)
        ended = RunTransition(**{"state": RunState.SUCCEEDED} | verdict)
        self.store.end_attempt(attempt, Ending(), ended, finished_at=self.store.now())
        return run

    def queue(self, agent: str = "a") -> Run:
        return self.store.enqueue(agent, first_seed=0)

    def files(self, run: Run) -> list[str]:
        paths = (self.folder / run.id).rglob("*")
        return sorted(str(p.relative_to(self.folder / run.id)) for p in paths if p.is_file())

    def whole(self, *runs: Run) -> list[bool]:
        return [self.files(run) == sorted(KEPT + WEIGHTS) for run in runs]

    def there(self, *runs: Run) -> list[bool]:
        return [(self.folder / run.id).exists() for run in runs]

    def retention(self, keep: int, days: int = 90, seconds_per_step: float = 0.0) -> Retention:
        kept = {"keep_runs": keep, "keep_run_days": days}
        times = itertools.count(0.0, seconds_per_step)
        return Retention(self.store, self.settings.model_copy(update=kept), lambda: next(times))


def settle(retention: Retention) -> Retention:
    for _ in range(8):
        retention.tick()
    return retention
