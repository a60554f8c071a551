"""The whole study; each part is printed and written when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measuring.not_run import NotRunError
from benchmarks.se_darwin import limits
from benchmarks.se_darwin.caching_sandbox import CachingSandbox
from benchmarks.se_darwin.calibration import study_calibration
from benchmarks.se_darwin.dataset import Dataset, Effort, Log
from benchmarks.se_darwin.generalization import generalization_rows
from benchmarks.se_darwin.pendulum import pendulum_data
from benchmarks.se_darwin.precision_gap import control_gap, gaps, repair_gap
from benchmarks.se_darwin.ranking import first_repairs
from benchmarks.se_darwin.ranking_cost import measure_execution_seconds, measure_ranking_seconds
from benchmarks.se_darwin.report import Report
from benchmarks.se_darwin.shuffled_labels import measure_on_shuffled_labels
from benchmarks.se_darwin.statistics import ModuleBootstrap, upper_bound_of_mean
from benchmarks.se_darwin.study import OURS, Study, study_one_edit
from benchmarks.se_darwin.two_edit_search import OCHIAI, search_all
from benchmarks.se_darwin.two_edit_search import OURS as OUR_SEARCH
from infrastructure.world_model import WorldModel

_TIMED_BUGS = 40


def run_all(
    sandbox: CachingSandbox, data: Dataset, effort: Effort, seed: int, report: Report, log: Log
) -> None:
    """Run every part."""
    log("one-edit bugs: learning and ranking")
    study = study_one_edit(data, effort, seed, log)
    bootstrap = ModuleBootstrap(study.modules, effort.resamples, seed)
    report.executions(data, study, bootstrap)
    report.checks += limits.one_edit(study, bootstrap)

    log("two-edit bugs: searching")
    found = search_all(sandbox, data.two_edits, study.trained, data.fold_of, seed)
    modules = [bug.module for bug in data.two_edits]
    two_edit_bootstrap = ModuleBootstrap(modules, effort.resamples, seed)
    report.searches(data, found, two_edit_bootstrap)
    report.checks.append(limits.two_edits(found, two_edit_bootstrap, OUR_SEARCH, OCHIAI))
    report.checks.append(limits.hidden(_hidden(sandbox, data, study, found)))

    log("calibration on policy and under policy shift")
    report.checks += limits.calibration(study_calibration(study.trained, seed))

    log("open world")
    report.generalization(
        {
            name: generalization_rows(cases, study.trained, data.fold_of)
            for name, cases in (("foreign", data.foreign), ("written", data.written))
        }
    )

    log("half precision against FP32")
    report.checks += limits.precision("repair", gaps(repair_gap(study.trained)))
    _control(effort, seed, report, log)

    log("cost of ranking, shuffled labels")
    bugs = [case.bug for case in study.cases[:: max(1, len(study.cases) // _TIMED_BUGS)]]
    model = WorldModel.from_fitted(study.trained[0].ours["fp32"].model, {})
    ranking = measure_ranking_seconds(sandbox, bugs, model)
    report.checks += limits.cost(ranking, measure_execution_seconds(bugs))
    noise = measure_on_shuffled_labels(study.trained[0].fold.data, effort.steps, seed)
    report.checks += limits.shuffled_labels(noise)
    report.finish()


def _hidden(
    sandbox: CachingSandbox,
    data: Dataset,
    study: Study,
    found: Mapping[str, Sequence[tuple[int, str] | None]],
) -> list[float]:
    """Return the share of hidden tests that each repair by our policies passes."""
    tasks = [case.bug.task for case in study.cases]
    replays = [case.replay for case in study.cases]
    repairs = [
        (tasks[position], source) for position, source in first_repairs(study.scores[OURS], replays)
    ]
    repairs += [
        (bug.task, item[1])
        for bug, item in zip(data.two_edits, found[OUR_SEARCH], strict=True)
        if item is not None
    ]
    return [task.hidden_pass_rate(sandbox, source) for task, source in repairs if task.hidden_tests]


def _control(effort: Effort, seed: int, report: Report, log: Log) -> None:
    try:
        data = pendulum_data(seed, effort.swing_transitions)
    except NotRunError as error:
        log(f"  pendulum not run: {error}")
        return
    seeds = range(seed, seed + effort.seeds)
    pairs, returns = control_gap(data, effort.steps, effort.swing_steps, seeds)
    report.checks += limits.precision("pendulum", gaps(pairs))
    for half in ("fp16", "bf16"):
        worse = upper_bound_of_mean(
            [(pair["fp32"] - pair[half]) / abs(pair["fp32"]) for pair in returns]
        )
        fp32 = sum(pair["fp32"] for pair in returns) / len(returns)
        report.checks += limits.precision(
            "pendulum", {f"{half} return of planning (fp32 {fp32:.1f}), loss": worse}
        )
