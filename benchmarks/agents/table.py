"""The table of all agents: what each learns in each precision."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from benchmarks.agents.subjects import Subject
from benchmarks.agents.training import (
    Effort,
    HeldOut,
    Trained,
    train_alone,
)
from infrastructure.events.precision_state import PRECISIONS, PrecisionName
from infrastructure.files import write_atomically


class Kept:
    """Trainings that are finished, one file each, so that none is repeated.

    Args:
        folder: Folder of the files.
        asked: What all of them share; another value belongs into another folder.

    Attributes:
        folder: As given.
    """

    def __init__(self, folder: Path, asked: Mapping[str, object]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "asked.json"
        if not path.exists():
            write_atomically(path, json.dumps(asked))
        elif json.loads(path.read_text()) != asked:
            raise SystemExit(f"{folder} was made with other options: choose another --output")

    def find(self, *key: object) -> Trained | None:
        """The training with *key*, or None."""
        path = self._path(key)
        return Trained(**json.loads(path.read_text())) if path.exists() else None

    def keep(self, trained: Trained, *key: object) -> None:
        """Write *trained*."""
        write_atomically(self._path(key), json.dumps(asdict(trained)))

    def _path(self, key: Sequence[object]) -> Path:
        return self.folder / f"{'-'.join(map(str, key))}.json"


class Learned:
    """Trainings of all *subjects*.

    Args:
        effort: Length of the trainings.
        kept: Where they are kept.
    """

    def __init__(self, subjects: Sequence[Subject], effort: Effort, kept: Kept) -> None:
        self._subjects, self._effort, self._kept = subjects, effort, kept
        self.held_out = {each.name: HeldOut.of(each) for each in subjects}

    def alone(self, precision: PrecisionName, seed: int) -> dict[str, Trained]:
        """Train one after the other."""
        found = {}
        for subject in self._subjects:
            name = subject.name
            trained = self._kept.find("alone", precision, seed, name)
            if trained is None:
                trained = train_alone(subject, precision, seed, self._effort, self.held_out[name])
                self._kept.keep(trained, "alone", precision, seed, name)
            found[name] = trained
        return found

    def rows(
        self, trained: Mapping[PrecisionName, Sequence[Mapping[str, Trained]]]
    ) -> Iterator[dict[str, str]]:
        """Rows of the table; *trained* are the trainings of each seed by precision."""
        for subject in self._subjects:
            name, best = subject.name, subject.best_accuracy
            row = {
                "agent": name,
                "records": subject.records,
                "rows": str(len(subject.transitions)),
                "base rate": f"{self.held_out[name].base_rate:.3f}",
                "best possible": "" if best is None else f"{best:.3f}",
            }
            for precision in PRECISIONS:
                seeds = [each[name] for each in trained.get(precision, ())]
                if seeds:
                    row[f"accuracy {precision}"] = _spread([each.accuracy for each in seeds])
                    row[f"skill {precision}"] = _spread([each.skill for each in seeds])
                    row[f"overflows {precision}"] = str(sum(each.overflows for each in seeds))
                    row[f"best epoch {precision}"] = _spread([each.best_epoch for each in seeds], 0)
            yield row


def _spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and the lowest and the highest value if there are several."""
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
