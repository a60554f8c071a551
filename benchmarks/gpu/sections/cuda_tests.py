"""The project's own tests on a GPU, each claim's in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from xml.etree import ElementTree

from benchmarks.gpu.claims import ROOT, claims_of
from benchmarks.gpu.section import Task

_GRAPHS = "tests/infrastructure/training/cuda_graphs/test_graphed_trainer.py"
_PREFLIGHT = "tests/infrastructure/training/diagnostics/preflight/test_preflight.py"
TESTS: Mapping[str, str] = {
    "graph-same-steps": f"{_GRAPHS}::test_on_cuda_a_graph_takes_the_same_steps",
    "graph-no-read": f"{_GRAPHS}::test_on_cuda_a_graph_step_waits_for_nothing",
    "graph-flip-and-load": f"{_GRAPHS}::test_on_cuda_a_graph_works_after_a_flip_and_a_load",
    "graph-failure": f"{_GRAPHS}::test_on_cuda_a_recording_that_fails_changes_nothing",
    "preflight-scale": (f"{_PREFLIGHT}::test_on_cuda_all_three_are_timed_and_the_scale_is_exact"),
    "library-auto": (
        "tests/infrastructure/world_model/test_world_model.py"
        "::test_training_takes_the_accelerator_by_default"
    ),
}


def run(task: Task) -> None:
    """Decide every claim of the section by its test."""
    for claim in claims_of(task.name):
        decide(task, claim.name)


def decide(task: Task, claim: str) -> None:
    """Decide *claim* by its test.

    Raises:
        RuntimeError: pytest did not get as far as a result.
    """
    path = task.folder / f"{claim}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "default"]
    done = subprocess.run(
        [*command, "-m", "cuda", f"--junitxml={path}", TESTS[claim]],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    if not path.exists():
        raise RuntimeError(f"pytest ended with {done.returncode} and wrote no results")
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))  # noqa: S314  # our own file
    failed = [(case, child) for case in cases for child in case.iter("failure")]
    if broken := [child for case in cases for child in case.iter("error")]:
        task.findings.cannot(claim, f"the test could not begin: {broken[0].get('message')}")
    elif skipped := [child for case in cases for child in case.iter("skipped")]:
        task.findings.cannot(claim, f"the test was skipped: {skipped[0].get('message')}")
    elif not cases:
        task.findings.cannot(claim, f"pytest found no test {TESTS[claim]}")
    else:
        first = f"; {failed[0][0].get('name')}: {failed[0][1].get('message')}" if failed else ""
        task.findings.decide(
            claim,
            holds=not failed,
            measured=f"{len(cases) - len(failed)} of {len(cases)} tests passed{first}",
            tests=len(cases),
            failed=len(failed),
        )
