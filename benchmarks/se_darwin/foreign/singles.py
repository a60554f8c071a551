"""The results of every single edit of a bug, run once and kept on disk.

With them every ranker is compared at no cost: whether a program passes the tests does not depend
on what chose it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.effects import Effect, measure_effects
from agents.se_darwin.features import Fields, Step, StepFeatures, observe
from agents.se_darwin.search.operators import revise
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks.evaluation import Evaluation
from benchmarks.se_darwin.foreign.bug import MODULE, ForeignBug

RECORDED = Path("benchmark_results/.cache/foreign-singles")
_SECONDS = 5.0
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Singles:
    """Attributes:
    bug: The bug.
    space: Its program and single edits.
    given: The given program, evaluated with coverage.
    steps: Single edits that were run; of those that make the same program, the first.
    passed: Checks that each passes, in the order of *steps*.
    effects: Effects of the edits, as far as they are known.
    """

    bug: ForeignBug
    space: EditSpace
    given: Evaluation
    steps: Sequence[Step]
    passed: Sequence[tuple[bool, ...]]
    effects: Mapping[Edit, Effect]

    @property
    def fixes(self) -> list[bool]:
        """Whether each step passes every check."""
        return [all(checks) for checks in self.passed]

    def fields(self) -> tuple[Fields, list[Fields]]:
        """Observation of the given program, and action of each step."""
        features = StepFeatures(self.space, self.given)
        return observe(self.space, self.given), [features.describe(step) for step in self.steps]


def record(bug: ForeignBug, folder: Path = RECORDED, *, seconds: float = 120.0) -> Singles:
    """Run every single edit of *bug* that was not run before, for *seconds* at most.

    The effects are measured each time: unlike the results they depend on how that is done.

    Raises:
        ValueError: The sandbox cannot run the tests.
    """
    file = folder / f"{bug.digest[:16]}.json"
    known = json.loads(file.read_text()) if file.is_file() else {"runs": {}}
    runs: dict[str, str] = known["runs"]
    request = EvolutionRequest(
        code=bug.code, function=bug.function, module=MODULE, test_code=bug.test_code
    )
    with request.sandbox() as sandbox:
        task = request.task(sandbox, _SECONDS)
        space = task.space
        programs: dict[str, Step] = {}
        for step in revise(space, frozenset()):
            programs.setdefault(space.program(step.edits), step)
        programs.pop(space.source, None)
        nothing = frozenset[Edit]()
        [given] = task.evaluate(sandbox, [(nothing, space.source)], coverage=True)
        effects = measure_effects(task, sandbox, given, space.edits, seconds=seconds)
        todo = [source for source in programs if _digest(source) not in runs]
        ends = time.monotonic() + seconds
        for start in range(0, len(todo), _TOGETHER):
            if time.monotonic() > ends:
                break
            batch = todo[start : start + _TOGETHER]
            children = task.screen(sandbox, [(programs[each].edits, each) for each in batch])
            for source, child in zip(batch, children, strict=True):
                runs[_digest(source)] = "".join("01"[passes] for passes in child.passed)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"runs": runs}))
    kept = [(step, runs.get(_digest(source))) for source, step in programs.items()]
    return Singles(
        bug=bug,
        space=space,
        given=given,
        steps=[step for step, passed in kept if passed is not None],
        passed=[tuple(each == "1" for each in passed) for _, passed in kept if passed is not None],
        effects=effects,
    )


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]
