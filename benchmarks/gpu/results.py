"""The results of all sections: every claim with what became of it, as JSON."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu.claims import CLAIMS, ROOT, Claim
from benchmarks.gpu.findings import Finding
from benchmarks.gpu.supervise import SectionEnd


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """All that a run found.

    Attributes:
        machine: Device, driver, versions, commit and time.
        rehearsal: Whether it ran on a CPU, to try the machinery.
        seconds: Time of the whole.
        ends: Sections that were asked for.
    """

    machine: Mapping[str, str]
    rehearsal: bool
    seconds: float
    ends: Sequence[SectionEnd]

    def findings(self) -> list[tuple[Claim, Finding]]:
        """Every claim, with its finding or the reason that it has none."""
        by_section = {end.section.name: end for end in self.ends}
        found = {finding.claim: finding for end in self.ends for finding in end.findings}
        return [
            (claim, found.get(claim.name) or _undecided(claim, by_section.get(claim.section)))
            for claim in CLAIMS
        ]

    def counts(self) -> Counter[str]:
        """Number of claims by outcome."""
        return Counter(finding.outcome for _, finding in self.findings())

    def exit_code(self) -> int:
        """0 if nothing was refuted and no section failed, else 1."""
        failed = any(end.problem for end in self.ends)
        return 1 if failed or self.counts()["refuted"] else 0

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "machine": dict(self.machine),
            "rehearsal": self.rehearsal,
            "seconds": round(self.seconds, 1),
            "counts": dict(self.counts()),
            "claims": [
                {
                    "name": claim.name,
                    "place": place(claim),
                    "quote": claim.quote,
                    "test": claim.test,
                    "section": claim.section,
                    **{key: value for key, value in asdict(finding).items() if key != "claim"},
                }
                for claim, finding in self.findings()
            ],
            "sections": [
                {
                    "name": end.section.name,
                    "seconds": round(end.seconds, 1),
                    "problem": end.problem,
                    "tables": list(end.tables),
                    "log": end.log if end.problem else "",
                }
                for end in self.ends
            ],
        }


def place(claim: Claim) -> str:
    """Document and line of *claim*."""
    return f"{claim.document}:{claim.line()}"


def commit() -> str:
    """The commit that is measured, with a mark if files differ from it; why not where unknown."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + (" with changes" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown: {error}"


def _git(*words: str) -> str:
    git = shutil.which("git") or "git"
    done = subprocess.run([git, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _undecided(claim: Claim, end: SectionEnd | None) -> Finding:
    if end is None:
        reason = f"the section {claim.section} was not asked for"
    elif end.problem:
        last = end.log.rstrip().rpartition("\n")[2].strip()
        reason = f"the section {claim.section} {_verb(end.problem)}" + (f": {last}" if last else "")
    else:
        reason = f"the section {claim.section} ended without deciding it"
    return Finding(claim=claim.name, outcome="not measurable", reason=reason)


def _verb(problem: str) -> str:
    return problem if problem.startswith(("crashed", "failed")) else f"was {problem}"
