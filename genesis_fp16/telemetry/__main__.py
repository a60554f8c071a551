"""The process that exports telemetry: ``python -m genesis_fp16.telemetry``.

The first line of its standard input is a `TelemetrySpec`; each line of its standard output is a
`TelemetryReport`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Export until SIGTERM, or until the daemon ends."""
    from genesis_fp16.domain.telemetry import TelemetrySpec
    from genesis_fp16.system.processes import die_with_parent

    spec = TelemetrySpec.model_validate_json(sys.stdin.buffer.readline())
    die_with_parent(spec.parent)
    from genesis_fp16.telemetry.process import run

    run(spec, sys.stdout.buffer)


if __name__ == "__main__":
    main()
