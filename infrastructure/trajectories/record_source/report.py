"""What one reading of a folder of records found, in numbers and in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_MAX_NAMES = 8  # agents, files and problems that a report names


@dataclass(kw_only=True, slots=True)
class SourceReport:
    """What one reading of the folder found.

    Attributes:
        files: Files read, also those without new lines.
        records: New records.
        transitions: Transitions yielded.
        duplicates: Records that were known already.
        incomplete: Files whose last line was not complete yet; it is read next time.
        others: Records of other agents, by the agent's name.
        refused: Records that could not be read, by reason; never recorded.
        misfits: Transitions recorded although the fields in use do not fit them, by reason.
        unreadable: Files that could not be read, or not to their end, and why.
        first: First file and line of each reason in `refused` and `misfits`.
    """

    files: int = 0
    records: int = 0
    transitions: int = 0
    duplicates: int = 0
    incomplete: int = 0
    others: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    misfits: Counter[str] = field(default_factory=Counter)
    unreadable: dict[str, str] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """The counts, for a log line or a report of progress."""
        return {
            "files": self.files,
            "records": self.records,
            "transitions": self.transitions,
            "duplicates": self.duplicates,
            "incomplete": self.incomplete,
            "other_agents": self.others.total(),
            "refused": self.refused.total(),
            "misfits": self.misfits.total(),
            "unreadable": len(self.unreadable),
        }

    def looked_for(self, place: str, agents: Sequence[str]) -> str:
        """What was looked for, where, and what is there instead; for a run without data."""
        whose = f" that name {' or '.join(agents)}" if agents else ""
        others = ", ".join(f"{name} ({n})" for name, n in self.others.most_common(_MAX_NAMES))
        found = [f"{self.files} files"] if self.files else []
        found += [f"{self.records} new records of this agent"]
        found += [f"others name {others}"] if others else []
        found += [f"{self.refused.total()} lines cannot be read"] if self.refused else []
        return f"looked for records{whose} in {place}: {', '.join(found)}"

    def problems(self) -> Iterator[str]:
        """One sentence for each problem, most frequent first; of many, the first few."""
        kinds = (
            (self.refused, "record", "cannot be read", "correct the lines and append them again"),
            (
                self.misfits,
                "transition",
                "cannot be used with the agent's fields",
                "they are recorded, but not trained on; correct the records or the fields",
            ),
        )
        for reasons, noun, what, remedy in kinds:
            for reason, count in reasons.most_common(_MAX_NAMES):
                some = f"{count} {noun}" if count == 1 else f"{count} {noun}s"
                yield f"{some} {what}: {reason} (first: {self.first[reason]}); {remedy}"
            if (more := len(reasons) - _MAX_NAMES) > 0:
                yield f"{noun}s {what} for {more} more reasons"
        for name, cause in list(self.unreadable.items())[:_MAX_NAMES]:
            yield f"{name} cannot be read: {cause}; the other files were read"
        if self.others and not self.records and not self.duplicates:
            names = ", ".join(name for name, _ in self.others.most_common(_MAX_NAMES))
            yield (
                f"all {self.others.total()} records name other agents ({names}): correct 'agents' "
                "in the definition's source if some of them are this agent's"
            )

    def refuse(self, reason: str, place: str) -> None:
        """Count a record that cannot be read."""
        self.refused[reason] += 1
        self.first.setdefault(reason, place)
