"""Build the prior that ships with SE-Darwin: ``python -m agents.se_darwin.prior.build --seed 0``.

It breaks every function of the corpus again and again, runs candidate repairs, and trains two
world models on their results: the prior, and the twin that stands in for it where a run's model is
tested.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Annotated

import torch
import typer

from agents.se_darwin.collection import evolve_tasks, open_corpus_sandbox, survey_tasks
from agents.se_darwin.edits import EditSpace
from agents.se_darwin.features import SPEC, StepFeatures, observe
from agents.se_darwin.prior import PRIOR_FOLDER
from agents.se_darwin.sandbox import Execution, Output, TestCase
from agents.se_darwin.search.operators import revise
from agents.se_darwin.settings import SEDarwinSettings
from agents.se_darwin.tasks import Evaluation
from infrastructure.agent_contract import Transition
from infrastructure.world_model import WorldModel
from infrastructure.world_model_agent.prior import Prior, PriorError, build_prior

COMMAND = "python -m agents.se_darwin.prior.build --seed {seed}"
CANDIDATES = 32_000
SURVEY_SHARE = 0.85
SURVEYED_PER_TASK = 24
PART_CANDIDATES = 800
EVALUATIONS_PER_TASK = 48
RANKER_EPOCHS = 10
EPOCHS = 20
SETTINGS = SEDarwinSettings(
    evaluations_per_task=EVALUATIONS_PER_TASK,
    two_edit_share=0.1,  # a survey of single edits shows no repair of two faults
    few_tests_share=0.75,  # people write few
)
MEMBERS = 3  # two fewer than a run trains: as good on unseen functions, and smaller

_REPORT_EVERY = 500
_DIGITS = 6  # of a feature: the last ones of a logarithm depend on the machine
_EXAMPLE = """\
def total(lines, rate=0.9, limit=100):
    amount, seen = 0, set()
    for line in lines:
        if line.name in seen or not line.count:
            continue
        seen.add(line.name)
        amount += line.price * line.count
    if amount > limit and lines:
        amount = amount * rate - len(seen[1:])
    return round(amount, 2)
"""
"""Program whose features identify their version; it is never run."""


def main(
    seed: Annotated[int, typer.Option(help="Seed of faults, searches and weights.")] = 0,
    candidates: Annotated[
        int, typer.Option(min=1, help="Number of candidates to run and to learn from.")
    ] = CANDIDATES,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that run candidates.")] = 2,
    folder: Annotated[Path, typer.Option(help="Folder of the prior.")] = PRIOR_FOLDER,
) -> None:
    """Run candidates in the sandbox, train the prior and its twin on them, and write both.

    The same seed gives the same bytes on one machine with one version of Python and of torch.
    Elsewhere the corpus, which is the standard library, and the last bits of the weights differ.
    """
    started = time.monotonic()
    before = _files(folder)
    transitions = []
    for transition in collect(seed, candidates, jobs):
        transitions.append(transition)
        if len(transitions) % _REPORT_EVERY == 0 or len(transitions) == candidates:
            repaired = sum(transition.terminated for transition in transitions)
            functions = len({transition.group for transition in transitions})
            seconds = time.monotonic() - started
            typer.echo(
                f"{len(transitions)} of {candidates} candidates, {repaired} repairs of "
                f"{functions} functions, {seconds:.0f} s"
            )
    typer.echo("training the twin, then the prior")
    train(folder, transitions, seed)
    files = _files(folder)
    typer.echo(f"{time.monotonic() - started:.0f} s")
    for name, digest in files.items():
        typer.echo(f"  {name}: {(folder / name).stat().st_size} bytes, sha256 {digest[:16]}")
    typer.echo("the same files as before" if files == before else "other files than before")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Share of the candidates, with random numbers of its own, so that parts run side by side.

    Attributes:
        seed: Seed of the part.
        candidates: Number of candidates.
        ranker: Folder of the world model that ranks the candidates of searches; None to survey.
    """

    seed: str
    candidates: int
    ranker: Path | None = None

    def collect(self) -> list[Transition]:
        """Run the candidates in a sandbox of the part's own."""
        settings, rng = SETTINGS, Random(self.seed)
        with open_corpus_sandbox(settings.parallel_candidates) as sandbox, _reproducible():
            if self.ranker is None:
                rows = survey_tasks(sandbox, rng, settings, candidates=SURVEYED_PER_TASK)
            else:
                model = WorldModel.load(self.ranker)
                rows = evolve_tasks(sandbox, rng, settings, ranker=model)
            return list(islice(rows, self.candidates))


def collect(seed: int, candidates: int, jobs: int) -> Iterator[Transition]:
    """Yield the results of *candidates*: of a survey of broken functions, then of searches.

    The survey shows a repair of nearly every fault that one edit repairs. A world model trained on
    it ranks the candidates of the searches, so that they meet repairs as often as they will in use.

    Args:
        seed: Seed of faults and searches.
        candidates: Number of candidates to run.
        jobs: Number of processes; the results do not depend on it.
    """
    surveyed: list[Transition] = []
    for transition in _collect_parts(f"{seed}/survey", round(SURVEY_SHARE * candidates), jobs):
        surveyed.append(transition)
        yield transition
    with tempfile.TemporaryDirectory(prefix="se-darwin-prior-") as folder:
        ranker = WorldModel(SPEC, members=MEMBERS, seed=seed)
        with _reproducible(), warnings.catch_warnings(action="ignore", category=UserWarning):
            ranker.fit(surveyed, epochs=RANKER_EPOCHS, device="cpu", precision="fp32")
        ranker.save(Path(folder))
        remaining = candidates - len(surveyed)
        yield from _collect_parts(f"{seed}/searches", remaining, jobs, Path(folder))


def _collect_parts(
    seed: str, candidates: int, jobs: int, ranker: Path | None = None
) -> Iterator[Transition]:
    starts = range(0, candidates, PART_CANDIDATES)
    parts = [
        Part(
            seed=f"{seed}/{start}",
            candidates=min(PART_CANDIDATES, candidates - start),
            ranker=ranker,
        )
        for start in starts
    ]
    with get_context("fork").Pool(min(jobs, max(1, len(parts)))) as pool:
        for rows in pool.imap(Part.collect, parts):
            yield from rows


def train(folder: Path, transitions: list[Transition], seed: int, epochs: int = EPOCHS) -> None:
    """Train the prior and its twin on *transitions* and write them to *folder*."""
    with _reproducible():
        metrics = build_prior(
            folder,
            SPEC,
            transitions,
            as_used=transitions[round(SURVEY_SHARE * len(transitions)) :],
            epochs=epochs,
            members=MEMBERS,
            seed=seed,
            command=COMMAND.format(seed=seed),
            notes={
                "experience": digest_of(transitions),
                "features": features_digest(),
                "commit": _commit(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "machine": platform.machine(),
            },
        )
    for name in ("nll_skill", "outcome.auroc", "outcome.ece"):
        typer.echo(f"  twin on unseen functions: {name} {metrics.get(name, float('nan')):.4f}")


def digest_of(transitions: list[Transition]) -> str:
    """Hash of what is learned from *transitions*; where it differs, so does what was run."""
    digest = hashlib.sha256()
    for transition in transitions:
        content = (
            transition.group,
            transition.observation,
            transition.action,
            transition.reward,
            transition.next_observation,
        )
        digest.update(json.dumps(content).encode())
    return digest.hexdigest()


def features_digest() -> str:
    """Hash of the features of every single edit of an example program.

    It changes with the edits and with what the features mean, even if the spec stays the same.
    """
    space = EditSpace(_EXAMPLE, "total")
    tests = [TestCase.returning((number,), number) for number in range(4)]
    outputs = tuple(
        Output(kind="value", text=text, arguments="", lines=frozenset(lines))
        for text, lines in (
            ("0", (2, 3, 8, 10)),
            ("1", (2, 3, 4, 5, 8, 10)),
            ("3", (2, 3, 4, 6, 7, 8, 9, 10)),
            ("'3'", (2, 3, 4, 6, 7, 8, 10)),
        )
    )
    execution = Execution(outputs=outputs, end="exit")
    parent = Evaluation.of(frozenset(), space.source, execution, tests)
    features = StepFeatures(space, parent)
    steps = [features.describe(step) for step in revise(space, frozenset())]
    text = json.dumps(_rounded([observe(space, parent), *steps]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _reproducible() -> Iterator[None]:
    """Train in one thread: the number of threads changes the last bits of a sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _files(folder: Path) -> Mapping[str, str]:
    try:
        return Prior.open(folder).files
    except PriorError:
        return {}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _commit() -> str:
    """Commit of the checkout that contains this file; empty outside of one."""
    command = ["git", "-C", str(PRIOR_FOLDER), "rev-parse", "HEAD"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return completed.stdout.strip()


if __name__ == "__main__":
    typer.run(main)
