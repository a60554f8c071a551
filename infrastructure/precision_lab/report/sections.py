"""The sections of the report: each says in a sentence what it shows and what good looks like.

A section whose data are missing says so, and which command makes them. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from infrastructure.precision_lab.report.drawing import (
    Axis,
    Dot,
    Line,
    Tone,
    draw_dots,
    draw_lines,
    tone_of,
)
from infrastructure.precision_lab.report.reading import Cell, LabResults, Row
from infrastructure.precision_lab.results import read_number

SWEEP = "genesis-fp16 lab sweep"
_BASELINE = "fp32_baseline"
_LAST = 0.2  # share of the updates whose median stands for the end of a cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """Attributes:
    name: Name of its file, without suffix.
    svg: The drawing.
    """

    name: str
    svg: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Attributes:
    head: Names of the columns, with units.
    rows: Cells as text.
    tones: Class of each cell, such as ``good`` or ``bad``; empty for none.
    title: Line above it; empty for none.
    wraps: Whether long cells take several lines.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    tones: Sequence[Sequence[str]] = ()
    title: str = ""
    wraps: bool = False

    def tone(self, row: int, column: int) -> str:
        """Class of a cell."""
        if self.tones:
            return self.tones[row][column]
        return "wrap" if self.wraps else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Attributes:
    anchor: Name of its link.
    title: Heading.
    says: One sentence: what it shows and what good looks like.
    figures: Drawings.
    tables: Tables below them.
    notes: Further sentences.
    absent: Why there is nothing to show, and the command that makes it; empty otherwise.
    """

    anchor: str
    title: str
    says: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: str = ""


def all_sections(results: LabResults) -> list[Section]:
    """Every section, in the order of the page: those without data come last."""
    makers: Sequence[Callable[[LabResults], Section]] = (
        _stability,
        _kl,
        _rewards,
        _values,
        _accumulated,
        _mismatch,
        _clipping,
        _gradients,
        _stagnation,
        _replay,
        _probe,
        _bisect,
        _hypotheses,
    )
    return sorted((make(results) for make in makers), key=lambda each: each.absent != "")


def _stability(results: LabResults) -> Section:
    section = Section(
        anchor="stability",
        title="Which presets train",
        says=(
            "One row for each preset and one column for each seed: how the training ended. Good is "
            "a row of completed cells whose reward is that of fp32_baseline."
        ),
        absent=_without_cells(results),
    )
    if section.absent:
        return section
    seeds = results.seeds
    head = [
        "preset",
        *(f"seed {seed}" for seed in seeds),
        "reward at the end",
        "KL at the end, nats",
    ]
    rows, tones = [], []
    for preset in results.presets:
        cells = {cell.seed: cell for cell in results.cells if cell.preset == preset}
        ends = [_ending(cells.get(seed)) for seed in seeds]
        rewards = [end_of(cell, "task_reward_mean") for cell in cells.values()]
        kls = [end_of(cell, "kl_mc_mean") for cell in cells.values()]
        rows.append([preset, *(text for text, _ in ends), _range(rewards), _range(kls)])
        tones.append(["", *(tone for _, tone in ends), "", ""])
    section.tables.append(Table(head=head, rows=rows, tones=tones))
    section.notes.append(
        "Ends are medians over the last fifth of a cell's updates; shown are the median of the "
        "seeds and, in brackets, the lowest and highest."
    )
    section.figures.extend(
        _curves(results, "task_reward_mean", "reward of the task", name="reward")
    )
    return section


def _kl(results: LabResults) -> Section:
    section = Section(
        anchor="kl",
        title="KL penalty",
        says=(
            "KL penalty of each update as training computed it, by half type. Good is a curve "
            "that runs with FP32: a KL of 0 while the policy still moves has been rounded away."
        ),
        absent=_without(results, "kl_penalty_mean"),
    )
    if not section.absent:
        section.figures.extend(
            _curves(results, "kl_penalty_mean", "KL penalty, nats per token", name="kl", log=True)
        )
        section.figures.extend(
            _dots(
                results,
                "log_ratio_near_zero_frac",
                "share of tokens with a log-ratio of 0 (below 1e-6)",
                name="kl-near-zero",
            )
        )
    return section


def _rewards(results: LabResults) -> Section:
    name = "reward_resolution_median"
    section = Section(
        anchor="rewards",
        title="Resolution of rewards",
        says=(
            "Median gap between neighbouring distinct rewards of a batch. Good is the gap of FP32: "
            "a wider one means that different completions received the same reward."
        ),
        absent=_without(results, name),
    )
    if not section.absent:
        label = "gap between rewards, in their unit"
        section.figures.extend(_dots(results, name, label, name="reward-resolution", log=True))
    return section


def _values(results: LabResults) -> Section:
    name = "value_quant_step_median"
    section = Section(
        anchor="values",
        title="Values: steps and stagnation",
        says=(
            "How coarse the value head's numbers are, and how many did not change in an update. "
            "Good is the step of FP32 and a stagnation near 0; a head that stands still learns "
            "nothing."
        ),
        absent=_without(results, name, "value_stagnation_rate"),
    )
    if not section.absent:
        label = "gap between values, in units of reward"
        section.figures.extend(_dots(results, name, label, name="value-step", log=True))
        section.figures.extend(
            _dots(
                results,
                "value_stagnation_rate",
                "share of values unchanged by an update",
                name="value-stagnation",
            )
        )
    return section


def _accumulated(results: LabResults) -> Section:
    section = Section(
        anchor="accumulated",
        title="Accumulated error of log-probabilities",
        says=(
            "Error of a whole sequence's log-probability against FP32, by its length. Good stays "
            "far below 0.1 nats: a ratio of sequences is off by the exponential of it."
        ),
    )
    lines = [
        Line(
            label=dtype,
            tone=_dtype_tone(dtype),
            points=sorted(
                (row["seq_length"], row["sequence_error_mean"])
                for row in _probe_summary(results, "sequence_error_mean")
                if row["dtype"] == dtype
                and row["temperature"] == 1.0
                and None not in (row["seq_length"], row["sequence_error_mean"])
            ),
        )
        for dtype in ("bf16", "fp16")
    ]
    if any(line.points for line in lines):
        section.figures.append(
            Figure(
                name="accumulated-by-length",
                svg=draw_lines(
                    lines,
                    Axis(label="length, tokens"),
                    Axis(label="error of a sequence, nats", log=True),
                    describe="Error of a sequence's log-probability by length, for BF16 and FP16",
                ),
            )
        )
        section.notes.append("By length: of the probe, at temperature 1; nothing was trained.")
    section.figures.extend(
        _dots(
            results,
            "accum_err_final",
            "error of a completion's log-probability, nats",
            name="accumulated-in-training",
            log=True,
        )
    )
    if section.figures:
        return section
    return _absent(section, "accum_err_final", f"genesis-fp16 lab probe, or {SWEEP}")


def _mismatch(results: LabResults) -> Section:
    section = Section(
        anchor="mismatch",
        title="Mismatch of rollout and trainer",
        says=(
            "How far the trainer's log-probabilities are from those the tokens were drawn with. "
            "Good is near FP32; k3 above 0.01 biases the gradient, and one type for both helps "
            "most."
        ),
    )
    label = "k3 of rollout and trainer, nats per token"
    section.figures.extend(_dots(results, "mismatch_k3", label, name="mismatch", log=True))
    section.figures.extend(_replayed_errors(results))
    if section.figures:
        return section
    return _absent(section, "mismatch_k3", f"genesis-fp16 lab replay, or {SWEEP}")


def _replayed_errors(results: LabResults) -> Iterator[Figure]:
    """Share of the tokens of a replay whose mismatch exceeds a bound, for each preset."""
    lines = []
    for preset, result in results.replays.items():
        found = sorted(abs(each) for each in _distribution(result, "mismatch"))
        points = [(value, (len(found) - number) / len(found)) for number, value in enumerate(found)]
        lines.append(Line(label=_name(tone_of(preset)), tone=tone_of(preset), points=points))
    if any(line.points for line in lines):
        yield Figure(
            name="mismatch-distribution",
            svg=draw_lines(
                sorted(lines, key=lambda line: line.tone == "fp32"),
                Axis(label="|log p of trainer - log p of rollout|, nats", log=True),
                Axis(label="share of tokens above it", log=True),
                describe="Distribution of the mismatch of a replay's tokens, a line each preset",
            ),
        )


def _distribution(result: Row, name: str) -> list[float]:
    """Values of the tokens of a replay; empty where they are not a list of numbers."""
    tokens = result.get("tokens")
    values = tokens.get(name) if isinstance(tokens, dict) else None
    found = [_number(each) for each in values] if isinstance(values, list) else []
    return [each for each in found if each is not None and math.isfinite(each)]


def _number(value: object) -> float | None:
    """A number of a result; None where it is something else."""
    try:
        return read_number(value)  # type: ignore[arg-type]  # checked there
    except (TypeError, ValueError, OverflowError):
        return None


def _clipping(results: LabResults) -> Section:
    name = "ratio_unique_in_range"
    section = Section(
        anchor="clipping",
        title="Clipping meets rounded ratios",
        says=(
            "Number of distinct ratios inside PPO's clip range in an update. Good is as many as in "
            "FP32; a handful means that clipping acts on a staircase."
        ),
        absent=_without(results, name),
    )
    if not section.absent:
        label = "distinct ratios within 1 ± 0.2, count"
        section.figures.extend(_dots(results, name, label, name="clip-ratios", log=True))
        section.figures.extend(
            _dots(
                results, "clip_fraction", "share of ratios outside the range", name="clip-fraction"
            )
        )
    return section


def _gradients(results: LabResults) -> Section:
    section = Section(
        anchor="gradients",
        title="Gradient norms",
        says=(
            "Norm of all gradients before clipping, by half type. Good is the level of FP32 "
            "without spikes; above 100 is a spike, and a skipped update has no finite norm."
        ),
        absent=_without(results, "grad_norm"),
    )
    if not section.absent:
        section.figures.extend(
            _curves(results, "grad_norm", "gradient norm", name="gradient-norm", log=True)
        )
        rows = []
        for preset in results.presets:
            cells = [cell for cell in results.cells if cell.preset == preset]
            norms = [value for cell in cells for _, value in cell.series("grad_norm")]
            skipped = sum(value > 0 for cell in cells for _, value in cell.series("skipped"))
            spikes = sum(math.isfinite(value) and value > 100 for value in norms)
            finite = [value for value in norms if math.isfinite(value)]
            largest = f"{max(finite):.3g}" if finite else "none finite"
            rows.append([preset, f"{len(norms)}", f"{skipped}", f"{spikes}", largest])
        head = ["preset", "updates", "skipped", "spikes", "largest finite norm"]
        section.tables.append(Table(head=head, rows=rows))
    return section


def _stagnation(results: LabResults) -> Section:
    name = "update_stagnation_rate"
    section = Section(
        anchor="stagnation",
        title="Weights that do not move",
        says=(
            "Share of weights that an update left exactly as they were. Good is near 0: half "
            "weights without FP32 masters lose updates that are smaller than their spacing."
        ),
        absent=_without(results, name),
    )
    if not section.absent:
        label = "share of weights unchanged by an update"
        section.figures.extend(_dots(results, name, label, name="update-stagnation"))
    return section


def _replay(results: LabResults) -> Section:
    section = Section(
        anchor="replay",
        title="The same frozen batches under each preset",
        says=(
            "Error of the gradient against FP32 for the same weights and data, by preset. Good is "
            "below 0.01; near 1 the update has little to do with the one that FP32 makes."
        ),
    )
    if not results.replays:
        return _absent(section, "a replay", "genesis-fp16 lab replay")
    rows, found = [], dict[str, list[float]]()
    for preset, result in results.replays.items():
        error = _number(_inner(result, "gradients", "relative_error"))
        figures = [
            error,
            _number(_inner(result, "gradients", "cosine")),
            _number(_inner(result, "errors", "loss", "abs_err_mean")),
            _number(_inner(result, "errors", "log_probs", "abs_err_mean")),
            _number(_inner(result, "metrics", "kl_penalty_mean")),
            _number(_inner(result, "metrics", "exact_kl_penalty_mean")),
            _number(_inner(result, "metrics", "mismatch_k3")),
        ]
        rows.append([preset, *map(_text, figures)])
        found[preset] = [] if error is None else [error]
    axis = Axis(label="relative error of the gradient", log=True)
    section.figures.append(_dot_figure(found, axis, "replay-gradients"))
    head = ["preset", "gradient error", "cosine", "loss error", "log p error, nats"]
    head += ["KL penalty, nats", "exact KL, nats", "mismatch k3, nats"]
    section.tables.append(Table(head=head, rows=rows))
    return section


def _inner(result: Row, *names: str) -> object:
    """The value below *names*; None where an object is missing."""
    value: object = result
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _probe(results: LabResults) -> Section:
    section = Section(
        anchor="probe",
        title="One forward pass: rounding and kernels",
        says=(
            "Mean error of a token's log-probability by position, for the rounding of the logits "
            "alone (dashed) and for the real forward pass. Good is two close lines: a gap that "
            "grows with position comes from inside the model."
        ),
    )
    lines = []
    longest = max((row["seq_length"] for row in _positions(results)), default=0)
    for dtype in ("bf16", "fp16"):
        rows = [
            row
            for row in _positions(results)
            if row["dtype"] == dtype and row["seq_length"] == longest and row["temperature"] == 1.0
        ]
        for name, text, dashed in (
            ("real_logp_error_mean", "forward pass", False),
            ("simulated_logp_error_mean", "logits only", True),
        ):
            points = [(row["last_position"], row[name]) for row in rows if row[name] is not None]
            lines.append(
                Line(
                    label=f"{dtype}, {text}", tone=_dtype_tone(dtype), points=points, dashed=dashed
                )
            )
    if any(line.points for line in lines):
        section.figures.append(
            Figure(
                name="probe-by-position",
                svg=draw_lines(
                    lines,
                    Axis(label="position in the sequence, tokens"),
                    Axis(label="mean |error of log p|, nats", log=True),
                    describe="Error of log-probabilities by position, simulated and real",
                ),
            )
        )
    columns = {
        "dtype": "half type",
        "temperature": "temperature",
        "seq_length": "length, tokens",
        "tokens": "tokens",
        "nonfinite_tokens": "not finite",
        "simulated_logp_error_mean": "logits rounded, nats",
        "real_logp_error_mean": "forward pass, nats",
        "kernel_contribution": "kernels add, nats",
        "real_kl": "KL to FP32, nats",
    }
    rows_of_summary = _probe_summary(results, *columns)
    if rows_of_summary:
        section.tables.append(
            Table(
                head=list(columns.values()),
                rows=[[_text(row[name]) for name in columns] for row in rows_of_summary],
            )
        )
    section.notes.extend(f"Not measured: {each}." for each in _texts(results.probe, "not_measured"))
    if section.figures or section.tables:
        return section
    return _absent(section, "the probe", "genesis-fp16 lab probe")


def _bisect(results: LabResults) -> Section:
    section = Section(
        anchor="bisect",
        title="Where the error comes from",
        says=(
            "The smallest set of places whose FP32 brings the result within the noise of FP32, "
            "the costliest first. Good is a short list: keep these in FP32, the rest in half."
        ),
    )
    culprits = results.bisect.get("culprits")
    if not isinstance(culprits, list):
        return _absent(section, "a bisection", "genesis-fp16 lab bisect")
    rows = [
        [f"{number}", str(each.get("place", "")), _percent(each.get("share")), _joined(each)]
        for number, each in enumerate(culprits, start=1)
        if isinstance(each, dict)
    ]
    if rows:
        head = ["rank", "place in half precision", "share of the error", "harmful together with"]
        section.tables.append(Table(head=head, rows=rows))
    else:
        section.notes.append("No place loses more than the noise of FP32 explains.")
    if lines := _texts(results.bisect, "settings"):
        section.tables.append(Table(head=["settings to paste"], rows=[[line] for line in lines]))
    runs, seconds = (_number(results.bisect.get(name)) for name in ("runs", "seconds"))
    if runs is not None and seconds is not None:
        section.notes.append(f"The search took {runs:.0f} repetitions and {seconds:.0f} seconds.")
    ratio = _number(results.bisect.get("time_ratio"))
    if ratio is not None:
        section.notes.append(f"A repetition with the cure takes {ratio:.2f} times as long.")
    return section


def _hypotheses(results: LabResults) -> Section:
    section = Section(
        anchor="hypotheses",
        title="The four hypotheses of document 004",
        says=(
            "Each claim, what was measured with its 95 % interval over the seeds, and the verdict. "
            "Good is a verdict; an undecided claim names what would decide it."
        ),
    )
    columns = ("hypothesis", "claim", "interval", "rule", "verdict", "would decide")
    for model, rows in results.hypotheses.items():
        cells = [[str(row.get(name, "")) for name in columns] for row in rows]
        section.tables.append(Table(title=model, head=columns, rows=cells, wraps=True))
    if section.tables:
        return section
    command = "python -m benchmarks.precision_lab hypotheses --output RESULTS/hypotheses"
    return _absent(section, "the hypotheses", command)


def _percent(value: object) -> str:
    found = _number(value)
    return "unknown" if found is None else f"{found:.0%}"


def _joined(culprit: Row) -> str:
    return ", ".join(_texts(culprit, "partners"))


def _curves(
    results: LabResults, metric: str, label: str, *, name: str, log: bool = False
) -> Iterator[Figure]:
    """One line for each preset, the median of its seeds with their range for the baseline."""
    lines = []
    for preset in results.presets:
        by_step: dict[float, list[float]] = {}
        for cell in results.cells:
            if cell.preset == preset:
                for step, value in cell.series(metric):
                    by_step.setdefault(step, []).append(value)
        points, band = [], []
        for step in sorted(by_step):
            finite = [value for value in by_step[step] if math.isfinite(value)]
            if finite:
                points.append((step, median(finite)))
                band.append((min(finite), max(finite)))
        tone = tone_of(preset)
        lines.append(
            Line(
                label=_name(tone),
                tone=tone,
                points=points,
                band=band if preset == _BASELINE else (),
            )
        )
    lines.sort(key=lambda line: line.tone == "fp32")  # in front
    if any(line.points for line in lines):
        svg = draw_lines(
            lines, Axis(label="update"), Axis(label=label, log=log), describe=f"{label} by update"
        )
        yield Figure(name=name, svg=svg)


def _dots(
    results: LabResults, metric: str, label: str, *, name: str, log: bool = False
) -> Iterator[Figure]:
    """A row for each preset: the median over the updates of each seed."""
    found: dict[str, list[float]] = {preset: [] for preset in results.presets}
    for cell in results.cells:
        if values := cell.values(metric):
            found[cell.preset].append(median(values))
    if any(found.values()):
        yield _dot_figure(found, Axis(label=label, log=log), name)


def _dot_figure(found: dict[str, list[float]], axis: Axis, name: str) -> Figure:
    dots = [Dot(label=each[:40], tone=tone_of(each), values=found[each]) for each in found]
    return Figure(name=name, svg=draw_dots(dots, axis, describe=f"{axis.label}, by preset"))


def _without_cells(results: LabResults) -> str:
    return "" if results.cells else f"No cell of a sweep is in this folder: {SWEEP} makes them."


def _without(results: LabResults, *metrics: str) -> str:
    """Why no cell has any of *metrics*; empty if one has."""
    if not results.cells:
        return _without_cells(results)
    if any(cell.values(metric) for cell in results.cells for metric in metrics):
        return ""
    return f"No cell has a finite value of {' or '.join(metrics)}."


def _absent(section: Section, what: str, command: str) -> Section:
    return Section(
        anchor=section.anchor,
        title=section.title,
        says=section.says,
        absent=f"This folder has no result of {what}: {command} makes it.",
        notes=section.notes,
    )


def _ending(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "not run", "none"
    if cell.summary is None:
        return "not ended", "none"
    if cell.summary.is_failure:
        return f"{cell.summary.category} at update {cell.summary.updates}", "bad"
    if cell.summary.category != "completed":
        return cell.summary.category, "none"
    return "completed", "good"


def end_of(cell: Cell, metric: str) -> float | None:
    """Median of *metric* over the last fifth of a cell's updates; None if it has none."""
    values = cell.values(metric)
    return median(values[-max(1, round(len(values) * _LAST)) :]) if values else None


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "no value"
    if len(known) == 1:
        return f"{known[0]:.3g}"
    return f"{median(known):.3g} [{min(known):.3g}, {max(known):.3g}]"


def _positions(results: LabResults) -> list[Any]:
    names = {
        "dtype",
        "temperature",
        "seq_length",
        "last_position",
        "real_logp_error_mean",
        "simulated_logp_error_mean",
    }
    return [
        row
        for row in results.probe_rows
        if names <= row.keys() and None not in (row["seq_length"], row["last_position"])
    ]


def _probe_summary(results: LabResults, *names: str) -> list[Any]:
    """Rows of the probe's summary that have *names* and, but for the type, numbers in them."""
    found, rows = [], results.probe.get("by_length", [])
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or not {*names, "dtype", "temperature", "seq_length"} <= {
            *row
        }:
            continue
        found.append({**{n: _number(row[n]) for n in row}, "dtype": str(row["dtype"])})
    return found


def _name(tone: Tone) -> str:
    return "both half types" if tone == "mixed" else tone.upper()


def _dtype_tone(dtype: str) -> Tone:
    return "bf16" if dtype == "bf16" else "fp16"


def _texts(found: Row, name: str) -> list[str]:
    value = found.get(name, [])
    return [str(each) for each in value] if isinstance(value, list) else []


def _text(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
