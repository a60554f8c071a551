"""The proposers of one search: their rounds, what is taken in, and what became of it."""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Mapping
from math import inf

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.proposals.checks import CheckTexts, failing_checks
from agents.se_darwin.proposals.intake import DroppedProposalError, Proposal, read_proposal
from agents.se_darwin.proposals.shares import ProposerReport, Shares, worth
from agents.se_darwin.proposals.supply import Supply
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.evaluation import Evaluation, line_suspiciousness
from infrastructure.agent_contract.proposer import (
    EDITS,
    ProposalRequest,
    Proposer,
    SuspiciousLine,
    TriedProgram,
)

MOST_PROPOSALS = 24
_MOST_TRIED = 6
_MOST_LINES = 8
_POLL_SECONDS = 0.02
_PATIENCE_SECONDS = 120.0  # without a candidate, while nothing else is left to run


class Proposals:
    """Asks proposers for candidates of one task while the search goes on.

    Args:
        proposers: Proposers by name, besides the edits.
        code: Program as its author wrote it.
        description: What the caller says about the problem.
        tests: Source of the test module; empty if the tests are calls.
        most: Most candidates to take from each.

    Attributes:
        shares: What became of the candidates, and whose turn it is.
    """

    def __init__(
        self,
        proposers: Mapping[str, Proposer] | None = None,
        *,
        code: str = "",
        description: str = "",
        tests: str = "",
        most: int = MOST_PROPOSALS,
    ) -> None:
        self._supplies = {
            name: Supply(name, proposer, most) for name, proposer in (proposers or {}).items()
        }
        self._code, self._description, self._texts = code, description, CheckTexts(tests)
        self._tried: dict[str, list[Evaluation]] = {name: [] for name in self._supplies}
        self._votes: dict[str, Counter[str]] = {name: Counter() for name in self._supplies}
        self._waited_seconds = 0.0
        self.shares = Shares(list(self._supplies))

    def __bool__(self) -> bool:
        return bool(self._supplies)

    @property
    def are_awaited(self) -> bool:
        """Whether further candidates may come."""
        is_late = self._waited_seconds > _PATIENCE_SECONDS
        return not is_late and any(supply.is_open for supply in self._supplies.values())

    def wait(self, seconds: float) -> None:
        """Wait a moment for candidates, *seconds* at most."""
        for supply in self._supplies.values():
            if supply.is_open:
                began = time.monotonic()
                supply.wait(max(0.0, min(_POLL_SECONDS, seconds)))
                self._waited_seconds += time.monotonic() - began

    def take(
        self,
        task: RepairTask,
        root: Evaluation,
        best: Evaluation,
        *,
        waiting: Counter[str],
        seconds: float = inf,
    ) -> dict[str, list[Proposal]]:
        """Return the candidates that have arrived, by proposer; begin rounds of those without any.

        Args:
            task: The task.
            root: The given program, run with coverage.
            best: The best program so far.
            waiting: Number of candidates of each proposer that have not been run.
            seconds: Seconds until the search ends.
        """
        taken: dict[str, list[Proposal]] = {}
        for name, supply in self._supplies.items():
            may_start = supply.may_start  # before the queue is read, or the last ones are missed
            for code in supply.arrived():
                self._waited_seconds = 0.0
                if proposal := self._read(name, task.space, code):
                    taken.setdefault(name, []).append(proposal)
            if may_start and not (taken.get(name) or waiting[name]):
                supply.start(self._request(task, root, best, supply, seconds))
        return taken

    def preview(self, task: RepairTask, root: Evaluation) -> dict[str, str]:
        """Return what each proposer would send to another process first, by name."""
        return {
            name: supply.preview(self._request(task, root, root, supply, inf))
            for name, supply in self._supplies.items()
        }

    def count(
        self, name: str, child: Evaluation, gain: float, *, is_own: bool, given: float
    ) -> None:
        """Count an executed program that raised the best score by *gain*.

        Args:
            name: The proposer.
            child: The program.
            gain: Share of the failing checks by which it raised the best score.
            is_own: Whether the proposer wrote it; else it has further edits.
            given: Score of the given program.
        """
        is_proposal = is_own and name != EDITS
        self.shares.count(
            name,
            gain=gain,
            is_repair=child.fixed,
            is_descendant=not is_own,
            worth=worth(child.score, given) if is_proposal else 0.0,
        )
        if is_proposal:
            self._tried[name].append(child)

    def drop(self, name: str, reason: str) -> None:
        """Count a candidate of *name* that is not run."""
        self.shares.accounts[name].drop(reason)

    def agreement(self, source: str) -> float:
        """Return the largest share of a proposer's candidates that are *source*; 0 if none is."""
        return max(
            (votes[source] / max(1, votes.total()) for votes in self._votes.values()), default=0.0
        )

    def close(self) -> None:
        """Cancel what is under way."""
        for supply in self._supplies.values():
            supply.close()

    def report(self) -> list[ProposerReport]:
        """Return what became of each proposer's candidates, the edits first; none without any."""
        return [
            ProposerReport(
                name=name,
                proposed=account.proposed,
                run=account.run,
                descendants=account.descendants,
                gained=account.gained,
                repairs=account.repairs,
                dropped=dict(account.dropped),
                share=self.shares.share(name),
                problem=self._supplies[name].problem if name in self._supplies else "",
                summary=self._supplies[name].summary() if name in self._supplies else "",
            )
            for name, account in self.shares.accounts.items()
            if self._supplies
        ]

    def _read(self, name: str, space: EditSpace, code: str) -> Proposal | None:
        self.shares.accounts[name].proposed += 1
        try:
            proposal = read_proposal(space, code)
        except DroppedProposalError as error:
            self.drop(name, str(error))
            return None
        votes = self._votes[name]
        votes[proposal.source] += 1
        if votes[proposal.source] > 1:
            self.drop(name, "proposed before")
            return None
        return proposal

    def _request(
        self,
        task: RepairTask,
        root: Evaluation,
        best: Evaluation,
        supply: Supply,
        seconds: float,
    ) -> ProposalRequest:
        return ProposalRequest(
            program=self._code or task.space.source,
            function=task.function,
            description=self._description,
            checks=len(root.passed),
            failing=failing_checks(task, root, self._texts),
            suspicious=self._suspicious(task, root),
            best=self._tried_program(task, best) if best.score > root.score else None,
            tried=tuple(
                self._tried_program(task, child)
                for child in self._tried[supply.name][-_MOST_TRIED:]
            ),
            round=supply.rounds,
            candidates=supply.left,
            seconds=seconds,
            is_cancelled=supply.is_cancelled,
        )

    def _tried_program(self, task: RepairTask, program: Evaluation) -> TriedProgram:
        definition = definition_of(ast.parse(program.source), task.function)
        return TriedProgram(
            function=ast.unparse(definition),
            passed=sum(program.passed),
            failing=failing_checks(task, program, self._texts)[:3],
        )

    def _suspicious(self, task: RepairTask, root: Evaluation) -> tuple[SuspiciousLine, ...]:
        """Return the most suspicious lines, by their numbers in the author's text."""
        written = ast.walk(definition_of(ast.parse(self._code or task.space.source), task.function))
        lines = {
            node.lineno: there.lineno
            for node, there in zip(task.space.nodes, written, strict=True)
            if isinstance(node, ast.stmt) and isinstance(there, ast.stmt)
        }
        table = line_suspiciousness(root)
        ranked = sorted(lines, key=lambda line: -table.get(line, (0.0,))[0])
        return tuple(
            SuspiciousLine(line=lines[line], suspicion=table[line][0])
            for line in ranked[:_MOST_LINES]
            if line in table and table[line][0] > 0.0
        )
