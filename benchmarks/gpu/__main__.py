"""``python -m benchmarks.gpu``: prove or refute what this project says about CUDA, in ten minutes.

It needs a GPU and no network. It writes ``gpu.md`` and ``gpu.json``: device, versions, commit, and
each claim with its place in the documents, what was measured, and the outcome. ``--rehearse`` tries
the same sections on a CPU, with little work; that proves nothing about CUDA.

Exit code 0: nothing was refuted, and every section ended normally. 1: something was refuted, or a
section crashed, failed or ran out of time. 3: there is nothing to measure on.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu import plan
from benchmarks.gpu.machine import describe_cpu, describe_cuda
from benchmarks.gpu.page import write_page
from benchmarks.gpu.plan import SECTIONS, Section, allowed_seconds
from benchmarks.gpu.results import Results, commit
from benchmarks.gpu.supervise import SectionEnd, run_section
from genesis_fp16.system.processes import become_subreaper

OUTPUT = Path("benchmark_results/gpu")
NO_GPU = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections, print what they find, and write the page and the JSON."""
    options = _parse(arguments)
    begun = time.monotonic()
    device = "cpu" if options.rehearse else options.device
    found = describe_cpu() if options.rehearse else describe_cuda(device)
    if "problem" in found:
        print(f"nothing to measure on: {found['problem']}", file=sys.stderr)
        return NO_GPU
    become_subreaper()
    machine = {
        **found,
        "python": platform.python_version(),
        "commit": commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    sections = [each for each in SECTIONS if not options.sections or each.name in options.sections]
    folder = Path(tempfile.mkdtemp(prefix="genesis-gpu-"))
    ends: list[SectionEnd] = []
    try:
        for end in _run(sections, folder, begun, options, device):
            ends.append(end)
            _print(end)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is written", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = Results(
        machine=machine,
        rehearsal=options.rehearse,
        seconds=time.monotonic() - begun,
        ends=ends,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(results.to_json(), indent=1, allow_nan=False)
    (options.output / "gpu.json").write_text(text + "\n")
    write_page(results, options.output / "gpu.md")
    print(", ".join(f"{count} {outcome}" for outcome, count in results.counts().items()))
    print(f"written to {options.output}: gpu.md, gpu.json; {results.seconds:.0f} s")
    return results.exit_code()


def _run(
    sections: Sequence[Section],
    folder: Path,
    begun: float,
    options: argparse.Namespace,
    device: str,
) -> Iterator[SectionEnd]:
    for place, section in enumerate(sections):
        left = 60.0 * options.minutes - (time.monotonic() - begun)
        yield run_section(
            section,
            folder / section.name,
            seconds=allowed_seconds(sections, place, left),
            device=device,
            quick=options.rehearse,
        )


def _print(end: SectionEnd) -> None:
    print(f"\n{end.section.name}: {end.problem or 'ended'}, {end.seconds:.0f} s", flush=True)
    for finding in end.findings:
        print(f"  {finding.outcome}: {finding.claim}: {finding.measured or finding.reason}")
    if end.problem and end.log:
        print("  | " + end.log.replace("\n", "\n  | "), flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--rehearse", action="store_true", help="try the sections on the CPU")
    parser.add_argument(
        "--sections", nargs="+", choices=[each.name for each in SECTIONS], help="default: all"
    )
    parser.add_argument("--minutes", type=float, default=plan.TOTAL_SECONDS / 60.0)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of page and JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
