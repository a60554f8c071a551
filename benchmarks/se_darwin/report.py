"""Tables on the screen, CSV files and a plot; bad figures are included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.measuring.plot import plot_shares
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.se_darwin.dataset import Dataset
from benchmarks.se_darwin.limits import DECAYED, SORTED, LimitCheck
from benchmarks.se_darwin.statistics import ModuleBootstrap
from benchmarks.se_darwin.study import OURS, RIVALS, Study
from benchmarks.se_darwin.two_edit_search import MOST_EXECUTIONS, OCHIAI

Rows = Sequence[Mapping[str, str]]

_ONE_EDIT, _TWO_EDITS = "one edit", "two edits"


@dataclass(kw_only=True, slots=True)
class Report:
    """Attributes:
    folder: Folder of the files.
    quick: Whether the run was a preview.
    checks: Figures with limits, in order.
    written: Names of the files written.
    """

    folder: Path
    quick: bool
    checks: list[LimitCheck] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    _executions: dict[str, dict[str, Sequence[float]]] = field(default_factory=dict)

    def executions(self, data: Dataset, study: Study, bootstrap: ModuleBootstrap) -> None:
        """Print and write the one-edit bugs, a row per policy."""
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
            f"(without {unrepairable} that no single edit repairs); executions to repair"
        )
        self._table(title, "se_darwin_one_edit.csv", rows)
        self._executions[_ONE_EDIT] = {
            name: study.executions[name] for name in ("random", SORTED, DECAYED, *RIVALS, OURS)
        }

    def searches(
        self,
        data: Dataset,
        found: Mapping[str, Sequence[tuple[int, str] | None]],
        bootstrap: ModuleBootstrap,
    ) -> None:
        """Print and write the two-edit bugs, a row per policy."""
        rows = []
        baseline = [float(item is not None) for item in found[OCHIAI]]
        for name, items in found.items():
            executions = np.array(
                [MOST_EXECUTIONS + 1 if item is None else item[0] for item in items]
            )
            repaired = [float(item is not None) for item in items]
            rows.append(
                {
                    "policy": name,
                    **{
                        f"within_{most}": f"{np.mean(executions <= most):.3f}" for most in (25, 100)
                    },
                    "within_200": str(bootstrap.mean(repaired)),
                    f"less {OCHIAI}": str(bootstrap.difference(repaired, baseline)),
                }
            )
            self._executions.setdefault(_TWO_EDITS, {})[name] = executions.tolist()
        title = (
            f"two-edit bugs: {len(data.two_edits)} (without {data.lost} that no two edits undo); "
            f"share repaired within the given number of executions"
        )
        self._table(title, "se_darwin_two_edits.csv", rows)

    def generalization(self, tables: Mapping[str, Rows]) -> None:
        """Print and write a row per kind of fault."""
        for name, rows in tables.items():
            title = (
                f"open world, {name} bugs: how many one edit repairs, and after how many executions"
            )
            self._table(title, f"se_darwin_{name}.csv", rows)

    def finish(self) -> None:
        """Print and write the figures with limits, and draw the plot."""
        title = "figures and limits" + (" (quick: a preview, not a proof)" if self.quick else "")
        self._table(title, "se_darwin_limits.csv", [check.row() for check in self.checks])
        plot_shares(
            self.folder / "se_darwin.png",
            "faults in unseen modules, repaired",
            "executions",
            self._executions,
            {_ONE_EDIT: 500.0, _TWO_EDITS: float(MOST_EXECUTIONS)},
        )
        self.written.append("se_darwin.png")

    def _table(self, title: str, file: str, rows: Rows) -> None:
        columns = list(rows[0])
        print(f"\n{title}\n{format_table(rows, columns)}\n", flush=True)
        write_csv(self.folder / file, rows, columns)
        self.written.append(file)
