"""The whole study, part by part; each part is printed and written when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measuring.not_run import NotRunError
from benchmarks.se_darwin import limits
from benchmarks.se_darwin.calibration import calibration_study
from benchmarks.se_darwin.dataset import Dataset, Effort, Say
from benchmarks.se_darwin.generalization import open_world_rows
from benchmarks.se_darwin.pendulum import pendulum_data
from benchmarks.se_darwin.precision_gap import control_gap, gaps, repair_gap
from benchmarks.se_darwin.ranking import first_repairs
from benchmarks.se_darwin.ranking_cost import seconds_to_execute, seconds_to_rank
from benchmarks.se_darwin.recording import RecordingSandbox
from benchmarks.se_darwin.report import Report
from benchmarks.se_darwin.shuffled_labels import measure_chance
from benchmarks.se_darwin.statistics import ModuleBootstrap, upper_bound_of_mean
from benchmarks.se_darwin.study import OURS, Study, study_one_edit
from benchmarks.se_darwin.two_edit_search import OCHIAI, search_all
from benchmarks.se_darwin.two_edit_search import OURS as OUR_SEARCH
from infrastructure.world_model import WorldModel

_TIMED_BUGS = 40


def run_all(
    sandbox: RecordingSandbox, data: Dataset, effort: Effort, seed: int, report: Report, say: Say
) -> None:
    """Run every part."""
    say("one-edit bugs: learning and ranking")
    study = study_one_edit(data, effort, seed, say)
    bootstrap = ModuleBootstrap(study.modules, effort.resamples, seed)
    report.executions(data, study, bootstrap)
    report.shown += limits.one_edit(study, bootstrap)

    say("two-edit bugs: searching")
    found = search_all(sandbox, data.two_edits, study.taught, data.fold_of, seed)
    modules = [bug.module for bug in data.two_edits]
    of_searches = ModuleBootstrap(modules, effort.resamples, seed)
    report.searches(data, found, of_searches)
    report.shown.append(limits.two_edits(found, of_searches, OUR_SEARCH, OCHIAI))
    report.shown.append(limits.hidden(_hidden(sandbox, data, study, found)))

    say("calibration on policy and under policy shift")
    report.shown += limits.calibration(calibration_study(study.taught, seed))

    say("open world")
    report.open_world(
        {
            name: open_world_rows(cases, study.taught, data.fold_of)
            for name, cases in (("foreign", data.foreign), ("written", data.written))
        }
    )

    say("half precision against FP32")
    report.shown += limits.precision("repair", gaps(repair_gap(study.taught)))
    _control(effort, seed, report, say)

    say("cost of ranking, chance")
    bugs = [case.bug for case in study.cases[:: max(1, len(study.cases) // _TIMED_BUGS)]]
    model = WorldModel.from_fitted(study.taught[0].ours["fp32"].model, {})
    ranking = seconds_to_rank(sandbox, bugs, model)
    report.shown += limits.cost(ranking, seconds_to_execute(bugs))
    noise = measure_chance(study.taught[0].fold.data, effort.steps, seed)
    report.shown += limits.chance(noise)
    report.finish()


def _hidden(
    sandbox: RecordingSandbox,
    data: Dataset,
    study: Study,
    found: Mapping[str, Sequence[tuple[int, str] | None]],
) -> list[float]:
    """Share of hidden tests that each repair found by our policies passes."""
    tasks = [case.bug.task for case in study.cases]
    replays = [case.replay for case in study.cases]
    repairs = [
        (tasks[place], source) for place, source in first_repairs(study.scores[OURS], replays)
    ]
    repairs += [
        (bug.task, item[1])
        for bug, item in zip(data.two_edits, found[OUR_SEARCH], strict=True)
        if item is not None
    ]
    return [task.hidden_pass_rate(sandbox, source) for task, source in repairs if task.hidden_tests]


def _control(effort: Effort, seed: int, report: Report, say: Say) -> None:
    try:
        data = pendulum_data(seed)
    except NotRunError as error:
        say(f"  pendulum not run: {error}")
        return
    seeds = range(seed, seed + effort.seeds)
    pairs, returns = control_gap(data, effort.steps, effort.swing_steps, seeds)
    report.shown += limits.precision("pendulum", gaps(pairs))
    for half in ("fp16", "bf16"):
        worse = upper_bound_of_mean(
            [(pair["fp32"] - pair[half]) / abs(pair["fp32"]) for pair in returns]
        )
        fp32 = sum(pair["fp32"] for pair in returns) / len(returns)
        report.shown += limits.precision(
            "pendulum", {f"{half} return of planning (fp32 {fp32:.1f}), loss": worse}
        )
