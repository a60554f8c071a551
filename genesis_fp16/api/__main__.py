"""The process that serves the control API; the daemon starts ``python -m genesis_fp16.api``."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing, suppress


def main() -> None:
    """Serve until SIGTERM, or until the daemon ends."""
    from genesis_fp16.daemon.control import ApiSpec
    from genesis_fp16.system.processes import die_with_parent

    spec = ApiSpec.model_validate_json(sys.stdin.buffer.readline())
    die_with_parent(spec.parent)
    with suppress(OSError):
        os.nice(PRIORITY)  # behind the daemon's loop and the workers
    from genesis_fp16.api.app import make_app
    from genesis_fp16.api.server import serve
    from genesis_fp16.daemon.api_tokens import open_tokens
    from genesis_fp16.daemon.log import configure_logging
    from genesis_fp16.store import Store
    from genesis_fp16.system.permissions import private_umask

    configure_logging(spec.settings)
    listeners = [socket.socket(fileno=descriptor) for descriptor in spec.listeners]
    with (
        private_umask(spec.settings.home.absolute()),
        closing(Store.open(spec.settings)) as store,
    ):
        serve(make_app(spec.settings, store, open_tokens(spec.settings)), listeners)


PRIORITY = 5  # added to the niceness of the daemon

if __name__ == "__main__":
    main()
