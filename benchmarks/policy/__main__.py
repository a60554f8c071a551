"""``python -m benchmarks.policy``: how far rollout and trainer disagree, why, and what it costs.

``mismatch`` measures seven pairs of precisions; ``factorial`` computes one frozen batch in every
combination of causes; ``corrections`` applies every correction in BF16 and in FP16. They keep what
they have computed in the folder ``--output`` and continue from there. ``--model`` names a folder
with a model of transformers; without it, a small policy is pretrained first.

Three commands have options of their own, see ``learn --help``: ``learn`` trains the policy agent
in each precision, and ``search`` where learning is made harder; both continue, too. ``cost``
measures which share of a training the comparisons of rollout and trainer take.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.policy import cost, learning, search
from benchmarks.policy.corrections_table import STATS, measure_corrections
from benchmarks.policy.factorial import Factorial, run_factorial
from benchmarks.policy.mismatch_table import MEASURES, PairResult, measure_pairs
from benchmarks.policy.scores import Kept
from benchmarks.policy.subjects import CPU, Subject, load_subject, pretrain_small
from infrastructure.policy.models import PolicyModelError

OUTPUT = Path("benchmark_results/policy")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Size of the measurements.

    Attributes:
        prompts: Number of prompts.
        new_tokens: Longest completion.
        group: Completions of each prompt.
        steps: Steps of pretraining; 0 for a model from a folder.
        resamples: Resamples of the intervals.
    """

    prompts: int
    new_tokens: int
    group: int
    steps: int
    resamples: int


SMALL = Effort(prompts=24, new_tokens=64, group=2, steps=300, resamples=500)
SMALL_QUICK = Effort(prompts=12, new_tokens=24, group=2, steps=60, resamples=200)
LOADED = {
    "mismatch": Effort(prompts=24, new_tokens=24, group=1, steps=0, resamples=500),
    "factorial": Effort(prompts=24, new_tokens=16, group=1, steps=0, resamples=500),
    "corrections": Effort(prompts=24, new_tokens=24, group=1, steps=0, resamples=500),
}
LOADED_QUICK = Effort(prompts=12, new_tokens=6, group=1, steps=0, resamples=200)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write a CSV file beside the kept tensors."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    if given and given[0] in _OWN_OPTIONS:
        return _OWN_OPTIONS[given[0]](given[1:])
    options = _parse(given)
    torch.set_num_threads(options.threads)
    effort = _effort(options)
    start = time.monotonic()
    try:
        subject = _subject(options, effort)
    except PolicyModelError as error:
        sys.exit(f"error: {error}")
    machine = describe(CPU)
    print(
        f"{subject.name}: {sum(each.numel() for each in subject.model.parameters())} parameters, "
        f"{effort.prompts} prompts, {effort.group} completions each of at most "
        f"{effort.new_tokens} tokens; {machine['device']}, torch {machine['torch']}",
        flush=True,
    )
    quick = "-quick" if options.quick else ""
    folder = options.output / f"{options.what}-{subject.name}{quick}"
    kept = Kept(folder, {**asdict(effort), "seed": options.seed, "weights": _digest(subject)})
    run = _COMMANDS[options.what]
    printed = run(
        subject,
        kept,
        folder,
        new_tokens=effort.new_tokens,
        group=effort.group,
        seed=options.seed,
        resamples=effort.resamples,
    )
    print(printed, flush=True)
    print(f"written to {folder}; {time.monotonic() - start:.0f} s")
    return 0


def _mismatch(subject: Subject, kept: Kept, folder: Path, **amounts: int) -> str:
    results, ratios = measure_pairs(subject, kept, **amounts)
    rows = [_pair_row(each) for each in results]
    write_csv(folder / "mismatch.csv", rows, tuple(rows[0]))
    lines = [f"BF16/BF16 divided by FP16/FP16, {name}: {each}" for name, each in ratios.items()]
    return "\n".join([format_table(rows, tuple(rows[0])), *lines])


def _pair_row(result: PairResult) -> dict[str, str]:
    measures = {name: str(result.measures[name]) for name in MEASURES}
    return {
        "rollout": result.rollout,
        "trainer": result.trainer,
        "tokens": str(result.tokens),
        **measures,
    }


def _factorial(subject: Subject, kept: Kept, folder: Path, **amounts: int) -> str:
    result = run_factorial(subject, kept, **amounts)
    rows = _factorial_rows(result)
    write_csv(folder / "factorial.csv", rows, tuple(rows[0]))
    return f"{result.tokens} tokens\n{format_table(rows, tuple(rows[0]))}"


def _factorial_rows(result: Factorial) -> list[dict[str, str]]:
    def row(what: str, name: str, type_: str, value: object) -> dict[str, str]:
        return {"what": what, "name": name, "type": type_, "value": str(value)}

    return [
        *(row("share of variance", name, "", each) for name, each in result.shares.items()),
        *(row("k3 ratio", name, half, each) for (half, name), each in result.changes.items()),
        *(row("k3, FP32 head", name, half, each) for (half, name), each in result.heads.items()),
        *(row("k3", "same code, FP32 head on one side", h, k3) for h, k3 in result.aligned.items()),
        *(row("k3", name, "fp32", each) for name, each in result.floor.items()),
        row("k3", "recorded before truncation", "fp32", result.bias),
    ]


def _corrections(subject: Subject, kept: Kept, folder: Path, **amounts: int) -> str:
    results = measure_corrections(subject, kept, **amounts)
    rows = [
        {
            "precision": each.precision,
            "correction": each.correction,
            **{name: str(each.stats[name]) for name in STATS},
        }
        for each in results
    ]
    write_csv(folder / "corrections.csv", rows, tuple(rows[0]))
    return format_table(rows, tuple(rows[0]))


_OWN_OPTIONS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "cost": cost.main,
    "learn": learning.main,
    "search": search.main,
}
_COMMANDS: Mapping[str, Callable[..., str]] = {
    "mismatch": _mismatch,
    "factorial": _factorial,
    "corrections": _corrections,
}


def _effort(options: argparse.Namespace) -> Effort:
    if options.model is None:
        return SMALL_QUICK if options.quick else SMALL
    return LOADED_QUICK if options.quick else LOADED[options.what]


def _subject(options: argparse.Namespace, effort: Effort) -> Subject:
    if options.model is None:
        return pretrain_small(prompts=effort.prompts, steps=effort.steps, seed=options.seed)
    return load_subject(options.model, gguf_file=options.gguf_file, prompts=effort.prompts)


def _digest(subject: Subject) -> str:
    """Of the weights: kept results of others must not be mixed with these."""
    digest = hashlib.sha256()
    for _, tensor in sorted(subject.model.state_dict().items()):
        digest.update(tensor.flatten()[:1000].numpy().tobytes())
    return digest.hexdigest()[:16]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=tuple(_COMMANDS))
    parser.add_argument("--model", type=Path, help="folder of a model; default: the small policy")
    parser.add_argument("--gguf-file", help="GGUF file in that folder; needs gguf and accelerate")
    parser.add_argument("--quick", action="store_true", help="few tokens: a preview, not a proof")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, tokens and intervals")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="folder of tensors and CSV files"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
