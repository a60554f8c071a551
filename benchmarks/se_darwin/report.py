"""Tables on the screen, CSV files and a plot; what was not good stays in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measuring.plot import plot_shares
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.se_darwin.dataset import Dataset
from benchmarks.se_darwin.limits import SORTED, Shown
from benchmarks.se_darwin.statistics import ModuleBootstrap
from benchmarks.se_darwin.study import OURS, RIVALS, Study
from benchmarks.se_darwin.two_edit_search import MOST_EXECUTIONS, OCHIAI

Rows = Sequence[Mapping[str, str]]

_ONE_EDIT, _TWO_EDITS = "one edit", "two edits"


@dataclass(kw_only=True, slots=True)
class Report:
    """Attributes:
    folder: Where files go.
    quick: Whether the figures prove nothing.
    shown: Figures with limits, in order.
    written: Names of the files.
    """

    folder: Path
    quick: bool
    shown: list[Shown] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    _spent: dict[str, dict[str, Sequence[float]]] = field(default_factory=dict)

    def executions(self, data: Dataset, study: Study, bootstrap: ModuleBootstrap) -> None:
        """One-edit bugs, a row per policy."""
        ours = study.executions[OURS]
        rows = []
        for name, counts in study.executions.items():
            values = np.array(counts)
            rows.append(
                {
                    "policy": name,
                    **{
                        f"within_{most}": f"{np.mean(values <= most):.3f}" for most in (10, 25, 100)
                    },
                    "median": f"{np.median(values):g}",
                    "mean": str(bootstrap.mean(counts)),
                    "ochiai_over_it": str(bootstrap.ratio(study.executions[SORTED], counts)),
                    "it_over_ours": str(bootstrap.ratio(counts, ours)),
                }
            )
        unrepairable = len(data.one_edit) - len(study.cases)
        title = (
            f"one-edit bugs: {len(study.cases)} in {data.functions} functions of "
            f"{len(set(study.modules))} modules, "
            f"{np.mean([len(case.replay.outcomes) for case in study.cases]):.0f} candidates each "
            f"({unrepairable} more that no single edit repairs are left out); executions to repair"
        )
        self._table(title, "se_darwin_one_edit.csv", rows)
        self._spent[_ONE_EDIT] = {
            name: study.executions[name] for name in ("random", SORTED, OCHIAI, *RIVALS, OURS)
        }

    def searches(
        self,
        data: Dataset,
        found: Mapping[str, Sequence[tuple[int, str] | None]],
        bootstrap: ModuleBootstrap,
    ) -> None:
        """Two-edit bugs, a row per policy."""
        rows = []
        baseline = [float(item is not None) for item in found[OCHIAI]]
        for name, items in found.items():
            spent = np.array([MOST_EXECUTIONS + 1 if item is None else item[0] for item in items])
            repaired = [float(item is not None) for item in items]
            rows.append(
                {
                    "policy": name,
                    **{f"within_{most}": f"{np.mean(spent <= most):.3f}" for most in (25, 100)},
                    "within_200": str(bootstrap.mean(repaired)),
                    f"less {OCHIAI}": str(bootstrap.difference(repaired, baseline)),
                }
            )
            self._spent.setdefault(_TWO_EDITS, {})[name] = spent.tolist()
        title = (
            f"two-edit bugs: {len(data.two_edits)} ({data.lost} more that no two edits undo are "
            f"left out); share repaired within so many executions"
        )
        self._table(title, "se_darwin_two_edits.csv", rows)

    def open_world(self, tables: Mapping[str, Rows]) -> None:
        """A row per kind of fault."""
        for name, rows in tables.items():
            title = f"open world, {name} bugs: what one edit repairs, and how soon"
            self._table(title, f"se_darwin_{name}.csv", rows)

    def finish(self) -> None:
        """Print and write the figures with limits, and draw the plot."""
        title = "figures and limits" + (" (quick: a look, no proof)" if self.quick else "")
        self._table(title, "se_darwin_limits.csv", [shown.row() for shown in self.shown])
        plot_shares(
            self.folder / "se_darwin.png",
            "faults in unseen modules, repaired",
            "executions",
            self._spent,
            {_ONE_EDIT: 500.0, _TWO_EDITS: float(MOST_EXECUTIONS)},
        )
        self.written.append("se_darwin.png")

    def _table(self, title: str, file: str, rows: Rows) -> None:
        columns = list(rows[0])
        print(f"\n{title}\n{format_table(rows, columns)}\n", flush=True)
        write_csv(self.folder / file, rows, columns)
        self.written.append(file)
