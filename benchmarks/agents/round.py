"""One round of the fifteen business agents: a cold worker each, or one process for all.

Every process that is measured is finished at most once: its outcome is kept in a file, so that a
round can be measured in pieces.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.agents.businesses import BUSINESSES
from benchmarks.agents.subjects import RECORDS, preset_subjects
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors.local import WORKER_COMMAND
from genesis_fp16.runs.spec import spec_of_settings
from genesis_fp16.settings import Settings
from genesis_fp16.settings.source import child_environment
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionName
from infrastructure.files import write_atomically

Way = Literal["cold workers then", "cold workers", "one process"]
THEN: Way = "cold workers then"
COLD: Way = "cold workers"
SHARED: Way = "one process"
WAYS: tuple[Way, ...] = (COLD, SHARED)
_FURTHER_RECORDS = 2000  # of each agent, at most: models are tested with them
_ENTRY_POINT = "agents.replay_agent:ReplayAgent"
_ORIGINS = """
from importlib.util import find_spec
print(find_spec("genesis_fp16").origin, find_spec("infrastructure.training").origin, sep="\\n")
"""


class RoundFailedError(RuntimeError):
    """A process of a round failed; the message names its log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What became of one agent's run.

    Attributes:
        published: Whether it published a model.
        steps: Optimizer steps of its training.
        weights: SHA-256 of the file of its best epoch.
    """

    published: bool
    steps: int
    weights: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one process took for the runs of one agent or of several.

    Attributes:
        cpu_seconds: CPU time from its start to its end.
        peak_mebibytes: Largest resident memory.
        outcomes: By agent.
    """

    cpu_seconds: float
    peak_mebibytes: float
    outcomes: Mapping[str, RunResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How well a published model predicts records that no run has seen.

    Attributes:
        accuracy: Share of records whose success it predicts right.
        nats: Gain of its likelihood of success over the base rate.
    """

    accuracy: float
    nats: float


class Round:
    """The runs of a round, each on a copy of one home, and what they took.

    Args:
        folder: Folder of what is kept; see `prepare`.
        precision: Precision of all trainings.
        checkout: Root of another checkout, such as one made by ``git worktree add``; None for none.

    Raises:
        RoundFailedError: *checkout* is not one.
    """

    def __init__(self, folder: Path, precision: PrecisionName, checkout: Path | None) -> None:
        self._home, self._further = folder / "home", folder / "further"
        self._kept, self._precision = folder / "measured", precision
        roots = {COLD: Path(__file__).parents[2]}
        if checkout is not None:
            roots[THEN] = checkout.resolve()
            _require_own_code(roots[THEN])
        self._checkout = roots.get(THEN)
        self._digests = {way: _code_digest(root) for way, root in roots.items()}

    def prepare(self, records: int, steps: int | None) -> None:
        """Enable the preset and record *records* for each agent, and others to test models with.

        The folder of records is emptied afterwards, so that a run collects nothing. A home that is
        prepared already stays as it is.

        Args:
            steps: Bound of the optimizer steps, written into the definitions; None for the
                preset's.
        """
        if self._kept.exists():
            return
        further = min(records, _FURTHER_RECORDS)
        for home, count, seed in ((self._home, records, 0), (self._further, further, 1)):
            shutil.rmtree(home, ignore_errors=True)
            preset_subjects(home, count, seed)
            for path in (home / RECORDS).iterdir():
                path.unlink()
        if steps is not None:
            for path in (self._home / "agents.d").iterdir():
                path.write_text(f"{path.read_text()}\n[training]\nsteps = {steps}\n")
        self._kept.mkdir()

    def cold(self, way: Way, name: str) -> Measured:
        """The run of one agent in a worker of its own; its published model is kept, too."""
        return self._measure(way, [name], keep_models=True)

    def together(self, way: Way, names: Sequence[str]) -> Measured:
        """The runs of several agents in one process."""
        return self._measure(way, names, keep_models=False)

    def qualities(self, way: Way, names: Sequence[str]) -> dict[str, Quality]:
        """How good the models are that cold workers published, by the code that trained them."""
        folders = {name: self._models(way) / name for name in names}
        published = [name for name, folder in folders.items() if folder.exists()]
        program = Path(__file__).with_name("published_quality.py")
        command = [sys.executable, "-P", str(program), str(self._further), str(self._models(way))]
        output = subprocess.run(
            [*command, *published],
            check=True,
            env=self._environment(way),
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        found = json.loads(output)
        return {name: Quality(**found[name]) for name in published}

    def _models(self, way: Way) -> Path:
        return self._kept / f"{self._slug(way)}-models"

    def _slug(self, way: Way) -> str:
        """Name of a way and of the code that was measured: a change of it is measured again."""
        digest = self._digests[THEN if way == THEN else COLD]
        return f"{way.replace(',', '').replace(' ', '-')}-{digest}"

    def _environment(self, way: Way) -> dict[str, str]:
        variables = {"OMP_NUM_THREADS": "1"}
        if way == THEN:
            variables["PYTHONPATH"] = str(self._checkout)
        return child_environment(variables)

    def _measure(self, way: Way, names: Sequence[str], *, keep_models: bool) -> Measured:
        path = self._kept / f"{self._slug(way)}-{'-'.join(names)}.json"
        if path.exists():
            kept = json.loads(path.read_text())
            outcomes = {name: RunResult(**each) for name, each in kept.pop("outcomes").items()}
            return Measured(outcomes=outcomes, **kept)
        with tempfile.TemporaryDirectory(prefix="genesis-round-") as folder:
            home = Path(folder) / "home"
            shutil.copytree(self._home, home)
            measured = self._run(way, home, names)
            for name in names if keep_models else ():
                published = home / "agents" / name / "published"
                if published.exists():
                    shutil.copytree(published, self._models(way) / name, dirs_exist_ok=True)
        write_atomically(path, json.dumps(asdict(measured)))
        return measured

    def _run(self, way: Way, home: Path, names: Sequence[str]) -> Measured:
        specs = [str(_write_spec(home, name, self._precision)) for name in names]
        if way in (THEN, COLD):
            command = [*WORKER_COMMAND, *specs]
        else:
            command = [sys.executable, "-m", "benchmarks.agents.host", *specs]
        log = home / "worker.log"
        seconds, mebibytes = _run_process(command, log, self._environment(way))
        outcomes = {name: _outcome(home, name) for name in names}
        return Measured(cpu_seconds=seconds, peak_mebibytes=mebibytes, outcomes=outcomes)


def agent_names(count: int) -> list[str]:
    """The first *count* business agents."""
    return [business.name for business in BUSINESSES[:count]]


def _code_digest(root: Path) -> str:
    """Part of a hash over what a worker may import from the checkout in *root*."""
    digest = hashlib.sha256()
    for package in ("agents", "genesis_fp16", "infrastructure"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _require_own_code(checkout: Path) -> None:
    """Check that a worker that is told to use *checkout* does so."""
    origins = subprocess.run(
        [sys.executable, "-P", "-c", _ORIGINS],
        check=True,
        env=child_environment({"PYTHONPATH": str(checkout)}),
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    others = [each for each in origins if not Path(each).is_relative_to(checkout)]
    if others:
        raise RoundFailedError(f"{others[0]} would be imported, not the code of {checkout}")


def _write_spec(home: Path, name: str, precision: PrecisionName) -> Path:
    """Write the specification that a daemon with default settings gives the agent's worker.

    Fields with default values are left out, because another checkout may not know them.
    """
    run_folder = home / "runs" / name
    attempt_folder = run_folder / "attempts" / "1"
    attempt_folder.mkdir(parents=True)
    settings = Settings(home=home, worker_threads=1).model_copy(update={"cpu_half": True})
    spec = RunSpec(
        run_id=name,
        attempt=1,
        incarnation=name,
        agent=name,
        entry_point=_ENTRY_POINT,
        run_folder=run_folder,
        attempt_folder=attempt_folder,
        seed=1,
        precision=PrecisionState(requested=precision, effective=precision, reason="operator"),
        **spec_of_settings(settings, name),
    )
    path = attempt_folder / "spec.json"
    fields = json.loads(spec.model_dump_json(exclude_defaults=True, exclude={"loop"}))
    fields |= spec.loop.model_dump()  # one by one, as checkouts before `LoopSettings` want them
    path.write_text(json.dumps(fields))
    return path


def _run_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> tuple[float, float]:
    """CPU seconds and peak resident MiB of *command*, with what it prints in *log*.

    Raises:
        RoundFailedError: It failed; the message has the end of the log.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # its end would tell a worker that the daemon is gone
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.stdin is not None:
            process.stdin.close()
    if process.returncode:
        raise RoundFailedError(f"{' '.join(command[:4])} failed:\n{log.read_text()[-4000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _outcome(home: Path, name: str) -> RunResult:
    run_folder = home / "runs" / name
    events = run_folder / "attempts" / "1" / "events.ndjson"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    (published,) = [each for each in lines if each["kind"] == "published"]
    best_epoch = (run_folder / "best-epoch.pt").read_bytes()
    return RunResult(
        published=published["published"],
        steps=int(published["metrics"]["training_steps"]),
        weights=hashlib.sha256(best_epoch).hexdigest(),
    )
