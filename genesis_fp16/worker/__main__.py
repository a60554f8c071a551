"""``python -m genesis_fp16.worker SPEC``: see `genesis_fp16.worker.attempt_process`."""

from __future__ import annotations

from genesis_fp16.worker.collector_pause import collector_paused


def main() -> None:
    """Import what a worker needs, then run the attempt."""
    with collector_paused():
        from genesis_fp16.worker.attempt_process import main as run
    run()


if __name__ == "__main__":
    main()
