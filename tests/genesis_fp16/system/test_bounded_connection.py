"""Clients that stop in the middle of a request."""

import asyncio
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from genesis_fp16.system.bounded_connection import BoundedConnection


class Quick(BoundedConnection):
    body_seconds = 0.1


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(4 * Quick.body_seconds)  # longer than a client may take
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def received(path: Path, sent: bytes) -> bytes:
    """What a client receives that sends this and nothing more."""
    config = uvicorn.Config(answer, http=Quick, ws="none", lifespan="off", log_config=None)
    config.load()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Quick(config=config, server_state=ServerState(), app_state={}), path
    )
    async with server:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        answered = await reader.read()
        writer.close()
    return answered


def test_a_body_has_a_deadline_and_its_answer_has_none(tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
    assert asyncio.run(received(tmp_path / "cut", head + b"12")) == b""
    assert asyncio.run(received(tmp_path / "whole", head + b"1234")).endswith(b"done\r\n0\r\n\r\n")
