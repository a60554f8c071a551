from __future__ import annotations

from random import Random

from agents.se_darwin.features import Step
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.archive import Archive
from agents.se_darwin.search.proposer import EditProposer
from agents.se_darwin.tasks import RepairTask


def archive_of(task: RepairTask, sandbox: Sandbox) -> Archive:
    """The root and a repair of each fault; one of them changes no test's outcome."""
    space = task.space
    repairs = [
        frozenset({edit})
        for edit in space.edits
        if (edit.kind, edit.old, edit.new) in {("comparison", "Lt", "LtE"), ("constant", "1", "0")}
    ]
    programs = [(edits, space.program(edits)) for edits in (frozenset(), *repairs)]
    root, *repaired = task.evaluate(sandbox, programs)
    archive = Archive(root)
    for child in repaired:
        archive.register(child.edits, child.source)
        assert archive.add(child, root)
    return archive


def test_every_proposal_is_by_one_operator(sandbox: Sandbox, two_faults: RepairTask) -> None:
    archive = archive_of(two_faults, sandbox)
    proposer = EditProposer(two_faults.space)
    seen = set()
    for seed in range(60):
        parent = archive.members[1 + seed % 2]
        steps: list[Step] = proposer.propose(parent, archive, Random(seed))
        assert len({step.operator for step in steps}) == 1
        seen.add(steps[0].operator)
    assert seen == {"revision", "recombination"}  # refinement needs two edits


def test_recombination_makes_the_repair_of_both_faults(
    sandbox: Sandbox, two_faults: RepairTask
) -> None:
    archive = archive_of(two_faults, sandbox)
    proposer = EditProposer(two_faults.space)
    neutral = min(archive.members[1:], key=lambda member: member.score)
    assert neutral.score == archive.members[0].score
    merged = {
        step.edits
        for seed in range(60)
        for step in proposer.propose(neutral, archive, Random(seed))
        if step.operator == "recombination"
    }
    programs = [(edits, two_faults.space.program(edits)) for edits in merged]
    assert any(child.fixed for child in two_faults.evaluate(sandbox, programs))


def test_what_was_tried_is_not_proposed_again(sandbox: Sandbox, two_faults: RepairTask) -> None:
    archive = archive_of(two_faults, sandbox)
    proposer = EditProposer(two_faults.space)
    rng = Random(0)
    while steps := proposer.propose(archive.members[0], archive, rng):
        for step in steps[:40]:
            assert archive.is_untried(step.edits)
            archive.register(step.edits, two_faults.space.program(step.edits))
