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
from benchmarks.policy.scores import CPU
from benchmarks.precision_lab.hypotheses import (
    kl_collapse,
    reference_drift,
    reward_quantization,
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
from infrastructure.files import write_atomically
from infrastructure.policy.models import PolicyModelError
from infrastructure.precision_lab.results import json_text, read_number

OUTPUT = Path("benchmark_results/precision_lab/hypotheses")
CLAIMS: tuple[Claim, ...] = (
    *kl_collapse.CLAIMS,
    *reward_quantization.CLAIMS,
    *value_starvation.CLAIMS,
    *reference_drift.CLAIMS,
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


def _figures(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, float]]:
    """Figures of each seed, measured or kept."""
    effort = _effort(options)
    settings = {
        **asdict(effort),
        "model": str(options.model),
        "gguf_file": options.gguf_file,
        "torch": torch.__version__,
    }
    kept = {seed: _kept(folder / f"seed{seed}.json", settings) for seed in options.seeds}
    missing = [seed for seed, found in kept.items() if found is None]
    materials = iter(_materials(options, effort, missing))
    for seed, found in kept.items():
        figures = found
        if figures is None:
            began = time.process_time()
            figures = _measured(next(materials), loaded=options.model is not None)
            text = json_text({"settings": settings, "figures": figures}, indent=2)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"seed{seed}.json", text + "\n")
            print(f"seed {seed}: {time.process_time() - began:.0f} CPU s", flush=True)
        yield figures


def _kept(path: Path, settings: Mapping[str, object]) -> dict[str, float] | None:
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    if content["settings"] != settings:
        return None
    found = {name: read_number(value) for name, value in content["figures"].items()}
    return {name: value for name, value in found.items() if value is not None}


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
    for claim in CLAIMS:
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
    for hypothesis in dict.fromkeys(each.hypothesis for each in CLAIMS):
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
