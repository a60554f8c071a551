"""``python -m benchmarks.gpu.section``: one section, in the process that it may crash or hang."""

from __future__ import annotations

import argparse
import faulthandler
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.gpu.claims import claims_of
from benchmarks.gpu.findings import FindingsFile
from infrastructure.training.precision import resolve_device

FINDINGS = "findings.ndjson"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a section is given.

    Attributes:
        name: Name of the section.
        device: Device to measure.
        quick: Whether to do little, to rehearse the machinery.
        folder: Folder of its own.
        findings: Takes what it finds.
    """

    name: str
    device: torch.device
    quick: bool
    folder: Path
    findings: FindingsFile

    @property
    def on_cuda(self) -> bool:
        """Whether the device is CUDA's."""
        return self.device.type == "cuda"

    def needs_cuda(self) -> bool:
        """Whether the section ends here, off CUDA; records that for each of its claims."""
        if self.on_cuda:
            return False
        for claim in claims_of(self.name):
            self.findings.cannot(claim.name, "it is about CUDA, and this device is a CPU")
        return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.section", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("module")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    torch.set_num_threads(1)
    device = resolve_device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    names = frozenset(claim.name for claim in claims_of(options.name))
    findings = FindingsFile(options.folder / FINDINGS, names)
    import_module(options.module).run(
        Task(
            name=options.name,
            device=device,
            quick=options.quick,
            folder=options.folder,
            findings=findings,
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
