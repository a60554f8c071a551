"""Archive of programs to build on, and of all candidates tried."""

from __future__ import annotations

from agents.se_darwin.edits import Edit
from agents.se_darwin.tasks.evaluation import Evaluation


class Archive:
    """The root, the candidates that are not worse than their parent, and all edits tried.

    Neutral candidates are kept, because a repair of one of two faults may change no test's
    outcome.

    Args:
        root: The program under repair.

    Attributes:
        members: Members in order of arrival, the root first.
        best: The member with the highest score; of several, the first with the fewest edits.
    """

    def __init__(self, root: Evaluation) -> None:
        self.members = [root]
        self.best = root
        self._sources = {root.source}
        self._tried = {root.edits}

    def __len__(self) -> int:
        return len(self.members)

    def is_untried(self, edits: frozenset[Edit]) -> bool:
        """Whether no registered candidate has exactly these edits."""
        return edits not in self._tried

    def register(self, edits: frozenset[Edit], source: str) -> bool:
        """Register a candidate; return whether its *source*, in normal form, is new."""
        self._tried.add(edits)
        if source in self._sources:
            return False
        self._sources.add(source)
        return True

    def add(self, child: Evaluation, parent: Evaluation) -> bool:
        """Keep *child*, unless its score is lower than that of *parent*.

        Returns:
            Whether it was kept.
        """
        if child.score < parent.score:
            return False
        self.members.append(child)
        self.best = max(self.best, child, key=lambda member: (member.score, -len(member.edits)))
        return True
