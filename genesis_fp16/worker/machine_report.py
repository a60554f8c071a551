"""What a job finds on a machine of the cluster, for ``executors check``."""

from __future__ import annotations

import platform
import socket
import time
from pathlib import Path

import genesis_fp16
from genesis_fp16.domain.remote_attempt import MACHINE_FILE, MachineReport
from infrastructure.files import write_model


def write_report(folder: Path) -> None:
    """Write the report on this machine into *folder*, which the daemon reads on another one.

    Raises:
        OSError: This machine cannot write there.
    """
    write_model(folder / MACHINE_FILE, make_report())


def make_report() -> MachineReport:
    """What this machine has."""
    import torch

    return MachineReport(
        host=socket.gethostname(),
        time=time.time(),
        python=platform.python_version(),
        genesis_fp16=genesis_fp16.__version__,
        torch=torch.__version__,
        gpus=torch.cuda.device_count(),
    )
