"""``python -m benchmarks.precision_lab hypotheses``: figures, intervals over seeds, verdicts.

The figures of a seed are kept in the folder ``--output``, so a run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.spread import Interval
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.policy.subjects import CPU
from benchmarks.precision_lab.hypotheses import (
    kl_collapse,
    reference_drift,
    reward_quantization,
    training,
    value_starvation,
)
from benchmarks.precision_lab.hypotheses.material import (
    LOADED,
    SMALL,
    Effort,
    Material,
    loaded_materials,
    small_material,
)
from benchmarks.precision_lab.hypotheses.verdicts import Claim, intervals, overall
from infrastructure.events import Role
from infrastructure.files import write_json
from infrastructure.policy.models import PolicyModelError
from infrastructure.precision_lab.results import read_number

OUTPUT = Path("benchmark_results/precision_lab/hypotheses")
CLAIMS: tuple[Claim, ...] = (
    *kl_collapse.CLAIMS,
    *reward_quantization.CLAIMS,
    *value_starvation.CLAIMS,
    *reference_drift.CLAIMS,
    *training.CLAIMS,
)


def main(arguments: Sequence[str]) -> int:
    """Measure every seed, print figures and verdicts, write them as CSV files."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    machine = describe(CPU)
    start = time.monotonic()
    folder = options.output / ("small" if options.model is None else options.model.name)
    print(f"{machine['device']}, torch {machine['torch']}; {len(options.seeds)} seeds", flush=True)
    try:
        figures = intervals(list(_figures(options, folder)))
    except PolicyModelError as error:
        sys.exit(f"error: {error}")
    rows = [
        {"figure": name, "mean, 95 % interval": _interval(each)} for name, each in figures.items()
    ]
    write_csv(folder / "figures.csv", rows, tuple(rows[0]))
    print(format_table(rows, tuple(rows[0])))
    verdicts = list(_verdicts(figures))
    write_csv(folder / "verdicts.csv", verdicts, tuple(verdicts[0]))
    print(format_table(verdicts, tuple(verdicts[0])))
    print(f"written to {folder}; {time.monotonic() - start:.0f} s", flush=True)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precision_lab hypotheses", description=__doc__
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--model", type=Path, help="folder with a model; default: a small one")
    parser.add_argument("--gguf-file", help="GGUF file in that folder")
    names = [str(role) for role in training.ROLES]
    parser.add_argument(
        "--train",
        nargs="*",
        choices=names,
        default=names,
        help="roles whose BF16 is trained with, for the small model; default: all",
    )
    parser.add_argument("--quick", action="store_true", help="check the command, measure nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args(arguments)


def _effort(options: argparse.Namespace) -> Effort:
    effort = SMALL if options.model is None else LOADED
    if not options.quick:
        return effort
    return replace(
        effort,
        prompts=4,
        new_tokens=12,
        texts=2,
        text_tokens=20,
        steps=min(effort.steps, 5),
        gradient_rows=2,
    )


class Kept:
    """Figures in files of one folder, each with the settings it was measured with.

    Args:
        folder: Folder of one model, created if needed.
        settings: What the figures depend on; figures of other settings are measured again.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._folder, self._settings = folder, dict(settings)

    def find(self, name: str) -> dict[str, float] | None:
        """The figures kept as *name*; None if there are none of these settings."""
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        content = json.loads(path.read_text())
        if content["settings"] != self._settings:
            return None
        found = {name: read_number(value) for name, value in content["figures"].items()}
        return {name: value for name, value in found.items() if value is not None}

    def get(self, name: str, make: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The figures kept as *name*; *make* measures them the first time."""
        found = self.find(name)
        if found is not None:
            return found
        began = time.process_time()
        figures = make()
        self._folder.mkdir(parents=True, exist_ok=True)
        content = {"settings": self._settings, "figures": figures}
        write_json(self._folder / f"{name}.json", content)
        print(f"{name}: {time.process_time() - began:.0f} CPU s", flush=True)
        return figures


def _figures(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, float]]:
    """Figures of each seed, measured or kept."""
    effort = _effort(options)
    kept = Kept(
        folder,
        {
            **asdict(effort),
            "model": str(options.model),
            "gguf_file": options.gguf_file,
            "torch": torch.__version__,
        },
    )
    missing = [seed for seed in options.seeds if kept.find(f"seed{seed}") is None]
    materials = iter(_materials(options, effort, missing))
    loaded = options.model is not None
    for seed in options.seeds:
        figures = kept.get(f"seed{seed}", lambda: _measured(next(materials), loaded=loaded))
        yield figures if loaded else figures | _training(options, folder, seed)


def _training(options: argparse.Namespace, folder: Path, seed: int) -> dict[str, float]:
    settings = training.quick() if options.quick else training.SETTINGS
    kept = Kept(folder, {**settings.as_dict(), "torch": torch.__version__})
    roles = [Role(name) for name in options.train]
    return training.measure_pairs(seed, roles, kept.get, settings) if roles else {}


def _materials(
    options: argparse.Namespace, effort: Effort, seeds: Sequence[int]
) -> Iterator[Material]:
    if options.model is not None and seeds:
        return loaded_materials(options.model, options.gguf_file, seeds, effort)
    return (small_material(seed, effort) for seed in seeds)


def _measured(material: Material, *, loaded: bool) -> dict[str, float]:
    divergences = kl_collapse.LOADED_DIVERGENCES if loaded else kl_collapse.DIVERGENCES
    ways = [each for each in reference_drift.WAYS if not (loaded and each.startswith("fp16"))]
    experiments: tuple[Callable[[], dict[str, float]], ...] = (
        lambda: kl_collapse.measure_collapse(material, divergences),
        lambda: reward_quantization.measure_quantization(material),
        lambda: value_starvation.measure_starvation(material),
        lambda: reference_drift.measure_drift(material, ways),
    )
    figures: dict[str, float] = {}
    for experiment in experiments:
        figures |= experiment()
    return figures


def _verdicts(figures: Mapping[str, Interval]) -> Iterator[dict[str, str]]:
    for claim in sorted(CLAIMS, key=lambda each: each.hypothesis):
        measured = figures.get(claim.figure)
        row = {
            "hypothesis": claim.hypothesis,
            "claim": claim.text,
            "figure": claim.figure,
            "interval": "not measured" if measured is None else _interval(measured),
            "rule": f"confirmed above {claim.confirmed_above:g}, refuted below "
            f"{claim.refuted_below:g}",
            "verdict": "undecided" if measured is None else str(claim.verdict(measured)),
            "would decide": claim.would_decide,
        }
        yield row
    for hypothesis in sorted({each.hypothesis for each in CLAIMS}):
        claims = [each for each in CLAIMS if each.hypothesis == hypothesis]
        yield {
            "hypothesis": hypothesis,
            "claim": "as document 004 states it",
            "figure": "",
            "interval": "",
            "rule": "refuted with any necessary claim, confirmed with all",
            "verdict": str(overall(claims, figures)),
            "would decide": "",
        }


def _interval(measured: Interval) -> str:
    return f"{measured.figure:.3g} [{measured.low:.3g}, {measured.high:.3g}]"
