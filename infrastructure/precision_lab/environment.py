"""Numerics that do not vary between repetitions, and a record of where a result was computed."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from infrastructure.training.precision import device_name

ATTENTION = "math"
"""Kernel of attention: the only one that every device and type has."""

_PACKAGES = ("genesis-fp16", "transformers", "numpy")


@contextmanager
def fixed_numerics() -> Iterator[None]:
    """Compute attention by one kernel, and only by deterministic algorithms where torch has them.

    On a CPU equal input gives equal results, bit for bit, with the same number of threads.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def describe_environment(device: torch.device) -> dict[str, object]:
    """Device, versions, threads, attention kernel and determinism, for a result in JSON."""
    return {
        "device": str(device),
        "device_name": device_name(device),
        "torch": torch.__version__,
        "versions": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "attention": ATTENTION,
        "deterministic": True,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
