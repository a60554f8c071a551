"""Ports for the servers that benchmarks and tests start."""

import socket
from random import SystemRandom

# Linux gives ports from 32768 on to outgoing connections: one of those could be taken while the
# server that owns it is being restarted.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now, and that no connection is given later."""
    for port in SystemRandom().sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port of 127.0.0.1 is free from {PORTS.start} to {PORTS.stop - 1}")
