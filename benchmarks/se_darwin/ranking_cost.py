"""Cost of ranking and of executing a candidate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agents.se_darwin.collection import open_corpus_sandbox
from agents.se_darwin.edits import Edit
from agents.se_darwin.features import StepFeatures, observe
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.operators import revise
from benchmarks.se_darwin.bugs import Bug
from infrastructure.world_model import WorldModel

ROUNDS = 5
PROGRAMS_EACH = 10


def measure_ranking_seconds(sandbox: Sandbox, bugs: Sequence[Bug], model: WorldModel) -> float:
    """Return seconds per candidate: features, encoding, inference, sorting; best of the rounds.

    All candidates of a program are ranked at once, as in the agent.
    """
    nothing = frozenset[Edit]()
    roots = [
        bug.task.evaluate(sandbox, [(nothing, bug.task.space.source)], coverage=True)[0]
        for bug in bugs
    ]
    steps = [revise(bug.task.space, nothing) for bug in bugs]
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for bug, root, candidates in zip(bugs, roots, steps, strict=True):
            features = StepFeatures(bug.task.space, root)
            actions = [features.describe(step) for step in candidates]
            model.rank(observe(bug.task.space, root), actions)
        rounds.append(time.perf_counter() - started)
    return min(rounds) / sum(map(len, steps))


def measure_execution_seconds(bugs: Sequence[Bug]) -> float:
    """Return seconds per candidate, one at a time, in a sandbox without cache."""
    executed, spent = 0, 0.0
    with open_corpus_sandbox(parallel=1) as sandbox:
        for bug in bugs:
            edits = bug.task.space.edits[:: max(1, len(bug.task.space.edits) // PROGRAMS_EACH)]
            programs = [
                (frozenset({edit}), bug.task.space.program({edit}))
                for edit in edits[:PROGRAMS_EACH]
            ]
            started = time.perf_counter()
            bug.task.evaluate(sandbox, programs)
            spent += time.perf_counter() - started
            executed += len(programs)
    return spent / executed
