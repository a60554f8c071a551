"""Whose candidate runs next: a share of the budget follows what a proposer's have gained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypedDict

from infrastructure.agent_contract.proposer import EDITS

FLOOR = 1 / 16
"""Share of all executions that other proposers have without a gain: a fifteenth of the edits'."""
PROBES = 2
"""Executions of each proposer that do not wait for the edits'."""
PRIOR_RUNS = 10
PLAUSIBLE = 0.1
PRIOR_GAIN = 0.2  # of the edits in so many runs


class ProposerReport(TypedDict):
    """What became of one proposer's candidates.

    ``proposed`` were taken; ``run`` were executed until the end of the search and its assessment;
    ``descendants`` are executed programs with further edits than one of them; ``gained`` is the
    share of the failing checks by which both raised the best score; ``repairs`` passed every check;
    ``dropped`` counts by reason those that were not run. ``share`` is the share of executions it
    would have now. ``problem`` tells why it ended early, ``summary`` what the proposer says itself.
    """

    name: str
    proposed: int
    run: int
    descendants: int
    gained: float
    repairs: int
    dropped: dict[str, int]
    share: float
    problem: str
    summary: str


def combined(searches: Iterable[Sequence[ProposerReport]]) -> list[ProposerReport]:
    """Return the reports of several searches, with the same proposers, as one of each proposer.

    Share, problem and summary are those of the last search.
    """
    reports: dict[str, ProposerReport] = {}
    for report in chain.from_iterable(searches):
        before = reports.get(report["name"])
        reports[report["name"]] = (
            {**report}
            if before is None
            else {
                **report,
                "proposed": before["proposed"] + report["proposed"],
                "run": before["run"] + report["run"],
                "descendants": before["descendants"] + report["descendants"],
                "gained": before["gained"] + report["gained"],
                "repairs": before["repairs"] + report["repairs"],
                "dropped": dict(Counter(before["dropped"]) + Counter(report["dropped"])),
            }
        )
    return list(reports.values())


def worth(score: float, given: float) -> float:
    """Return how promising a proposer is whose candidate has that *score*, in [0, 1.1].

    It is worth something if it is not worse than the *given* program, and more the more of the
    failing checks it passes. Scores are shares of passed checks.
    """
    if score < given or score == 0.0:
        return 0.0
    return PLAUSIBLE + (score - given) / ((1.0 - given) or 1.0)


@dataclass(kw_only=True, slots=True)
class Account:
    """What became of one proposer's candidates; see `ProposerReport`."""

    proposed: int = 0
    run: int = 0
    descendants: int = 0
    credit: float = 0.0
    gained: float = 0.0
    repairs: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        """Count a candidate that is not run."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Shares:
    """A bandit with a floor over the edits and the other proposers.

    A proposer's rate is its credit for each candidate that was run: what they gained, or the worth
    of its own candidates, for one may be right where others come near. It may run `PROBES`
    candidates, and then as long as its share of all executions is below its rate divided by the sum
    of all rates, or below the floor.

    Args:
        names: Names of the proposers besides `EDITS`.
    """

    def __init__(self, names: list[str]) -> None:
        self.accounts = {name: Account() for name in (EDITS, *names)}
        self._floor = FLOOR / max(1, len(names))

    def count(
        self,
        name: str,
        *,
        gain: float,
        is_repair: bool,
        is_descendant: bool = False,
        worth: float = 0.0,
    ) -> None:
        """Count an executed candidate of *name* that raised the best score by *gain*.

        Args:
            name: The proposer.
            gain: Share of the failing checks by which it raised the best score.
            is_repair: Whether it passes every check.
            is_descendant: Whether it has further edits than the proposer's candidate.
            worth: See `worth`.
        """
        account = self.accounts[name]
        account.run += not is_descendant
        account.descendants += is_descendant
        account.gained += gain
        account.credit += max(gain, worth)
        account.repairs += is_repair

    def executed(self) -> dict[str, int]:
        """Return the number of executions by proposer."""
        return {name: each.run + each.descendants for name, each in self.accounts.items()}

    def forget_gains(self) -> None:
        """Let all begin again: after a repair nothing can be gained."""
        for account in self.accounts.values():
            account.credit = 0.0

    def share(self, name: str) -> float:
        """Return the share of all executions that *name* may have now, in (0, 1]."""
        if name == EDITS:
            return max(
                FLOOR, 1.0 - sum(self.share(other) for other in self.accounts if other != name)
            )
        total = sum(map(self._rate, self.accounts))
        return max(self._floor, min(1.0 - FLOOR, self._rate(name) / total))

    def next(self, ready: list[str], chosen: Mapping[str, int]) -> str:
        """Return whose candidate runs next.

        Args:
            ready: Who has one.
            chosen: Number of candidates by proposer that were run or will be.
        """
        done = 1 + sum(chosen.values())
        slack = {
            name: max(PROBES, self.share(name) * done) - 1 - chosen[name]
            for name in ready
            if name != EDITS
        }
        best = max(slack, key=lambda name: slack[name], default=EDITS)
        return best if EDITS not in ready or slack.get(best, -1.0) >= 0.0 else EDITS

    def _rate(self, name: str) -> float:
        account = self.accounts[name]
        prior = PRIOR_GAIN if name == EDITS else 0.0
        runs = account.run + account.descendants
        return (account.credit + prior) / (runs + PRIOR_RUNS)
