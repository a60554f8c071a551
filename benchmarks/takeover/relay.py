"""``python -m benchmarks.takeover.relay PORT TARGET``: passes bytes on between two local ports."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress


def main() -> None:
    """Serve until the process is killed."""
    port, target = int(sys.argv[1]), int(sys.argv[2])
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            client, _ = listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", target))
            except OSError:
                client.close()
                continue
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
