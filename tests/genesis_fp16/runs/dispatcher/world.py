"""A dispatcher with three agents whose behaviour tests choose."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.run import Run
from genesis_fp16.executors import Handle, LocalExecutor
from genesis_fp16.runs.dispatcher import Dispatcher
from genesis_fp16.settings import AgentSettings, Settings
from genesis_fp16.store import Store
from infrastructure.events import EventTail, PrecisionState

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="operator")


class Recorder:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.states: dict[str, list[str]] = {}

    def on_event(self, agent: str, run_id: str, event) -> None:
        self.events.append((run_id, event.kind))

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        self.states.setdefault(run_id, []).append(state)


class World:
    """A dispatcher with agents a, b and c, whose behaviour is set, and a clock that can jump."""

    def __init__(self, settings: Settings, command: tuple[str, ...]) -> None:
        self.recorder, self.jumped = Recorder(), 0.0
        self.precision = dict.fromkeys("abc", FP16)
        self.settings, self._command = settings, command
        self._executors: list[LocalExecutor] = []
        self._stores = ExitStack()
        self.begin()

    def begin(self) -> None:
        """Become a new daemon that knows only what is stored."""
        self.store = self._stores.enter_context(closing(Store.open(self.settings)))
        self._executors.append(LocalExecutor(self._command))
        self.dispatcher = Dispatcher(
            self.store,
            self._executors[-1],
            self.settings,
            {"a": "x:A", "b": "x:B", "c": "x:C"},
            self._decide,
            self.recorder,
        )

    def _decide(self, run: Run) -> PrecisionState:
        self.asked = run
        return self.precision[run.agent]

    def end(self) -> bool:
        """Kill and reap the workers of all daemons so far; return whether all are gone."""
        self.dispatcher.kill_all()
        self.dispatcher.follow_and_record(self.now)
        attempts = [a for run in self.store.runs() for a in self.store.attempts(run.id) if a.pid]
        workers = [Handle(pid=a.pid, started_at=a.pid_started_at) for a in attempts]
        return all(executor.poll(worker) for executor in self._executors for worker in workers)

    def close(self) -> None:
        """Close the stores of all daemons so far."""
        self._stores.close()

    def configure(self, **update: object) -> None:
        self.settings = self.settings.model_copy(update=update)
        self.dispatcher.settings = self.settings

    def behave(self, agent: str, **how: object) -> None:
        agents = {**self.settings.agents, agent: AgentSettings(settings=how)}
        self.configure(agents=agents)

    def behave_later(self, run_id: str, **how: object) -> None:
        """Change what the further attempts of a run do, whose settings are fixed."""
        path = self.settings.home / "runs" / run_id / "behaviour.json"
        path.write_text(json.dumps(how))

    def enqueue(self, agent: str = "a") -> str:
        return self.store.enqueue(agent, first_seed=0).id

    @property
    def now(self) -> float:
        return time.monotonic() + self.jumped

    def tick(self) -> None:
        self.dispatcher.tick(self.now)

    def run(self, run_id: str) -> Run:
        run = self.store.run(run_id)
        assert run is not None
        return run

    def events(self, run_id: str, kind: str) -> list:
        attempts = self.store.attempts(run_id)
        paths = [
            attempt_folder(self.settings.home, attempt) / "events.ndjson" for attempt in attempts
        ]
        return [e for path in paths for e in EventTail(path).read() if e.kind == kind]


def steps(world: World, run_id: str) -> int:
    return len(world.events(run_id, "step_stats"))


@contextmanager
def out_of_reach(folder: Path) -> Iterator[None]:
    """Let the *folder* be away, as a share that fails; a worker goes on with its open files."""
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.write_text("not a folder")
    yield
    folder.unlink()
    away.rename(folder)
