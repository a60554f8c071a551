"""Serves the application on open sockets, over bounded connections."""

from __future__ import annotations

import logging
import socket

import uvicorn
from fastapi import FastAPI

from genesis_fp16.system.bounded_connection import BoundedConnection

KEEP_ALIVE_SECONDS = 5
MAX_HEAD_BYTES = 1 << 15
GRACE_SECONDS = 1


def serve(app: FastAPI, listeners: list[socket.socket]) -> None:
    """Serve *app* on *listeners* until SIGTERM or SIGINT."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not each line that is not HTTP
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # a URL may hold what somebody has put there by mistake
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    uvicorn.Server(config).run(listeners)
