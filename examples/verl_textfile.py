"""The newest line of verl's log file as Prometheus text."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path


def exposition(log: str, experiment: str) -> str:
    """Metrics of the newest complete line of *log*, such as ``verl_rollout_corr_k3_kl``."""
    complete = [line for line in log.split("\n")[:-1] if line]
    if not complete:
        return ""
    newest = json.loads(complete[-1])
    values = {"step": newest["step"], **newest["data"]}
    return "".join(
        f'verl_{re.sub("[^a-zA-Z0-9_]", "_", name)}{{experiment="{experiment}"}} {value}\n'
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    )


if __name__ == "__main__":
    log, target = Path(sys.argv[1]), Path(sys.argv[2])
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_text(exposition(log.read_text(), sys.argv[3]))
    unfinished.replace(target)
