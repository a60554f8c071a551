"""The process that answers running agents: ``python -m genesis_fp16.predictor``.

The first line of its standard input is a `PredictorSpec`, each further line a `PredictorOrder`; its
end means that the daemon is gone. Each line of its standard output is a `PredictorReport`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Serve until SIGTERM, or until the daemon ends."""
    from genesis_fp16.domain.predictor import PredictorSpec
    from genesis_fp16.system.processes import die_with_parent

    spec = PredictorSpec.model_validate_json(sys.stdin.buffer.readline())
    if spec.parent is not None:
        die_with_parent(spec.parent)
    from genesis_fp16.predictor.process import run

    run(spec, orders=sys.stdin.buffer, reports=sys.stdout.buffer)


if __name__ == "__main__":
    main()
