"""Life of a predictor: one thread of torch, orders of the daemon, reports to it."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from functools import partial
from typing import BinaryIO

import torch
import uvicorn

from genesis_fp16.domain.predictor import PredictorOrder, PredictorSpec
from genesis_fp16.predictor.app import App
from genesis_fp16.predictor.figures import Figures
from genesis_fp16.predictor.gate import Gate
from genesis_fp16.predictor.server import serve
from genesis_fp16.system.permissions import private_umask
from genesis_fp16.system.tokens import Tokens


def run(spec: PredictorSpec, orders: BinaryIO, reports: BinaryIO) -> None:
    """Serve as *spec* says until SIGTERM, or the end of *orders*."""
    torch.set_num_threads(1)  # of few rows, several threads only wait for one another
    listeners = [socket.socket(fileno=descriptor) for descriptor in spec.listeners]
    figures = Figures()
    tokens = Tokens(spec.token, spec.token_file, notice=figures.notice)  # stdout is for reports
    app = App(spec, Gate(tokens), figures)
    reporting = threading.Thread(
        target=figures.report_to, args=(reports, lambda: len(app.models)), daemon=True
    )
    reporting.start()
    gc.collect()
    gc.freeze()  # what was imported is not searched for garbage again: pauses stay short
    try:
        with private_umask(spec.home):
            serve(app, listeners, partial(_follow, orders, app))
    finally:
        app.close()
        figures.end()
        reporting.join()


def _follow(orders: BinaryIO, app: App, server: uvicorn.Server) -> None:
    """Obey *orders* from now on, in a thread that hands them to the event loop."""
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_orders, args=(orders, app, server, loop), daemon=True).start()


def _read_orders(
    orders: BinaryIO, app: App, server: uvicorn.Server, loop: asyncio.AbstractEventLoop
) -> None:
    while line := orders.readline():
        order = PredictorOrder.model_validate_json(line)
        loop.call_soon_threadsafe(app.know, order.agents)
    server.should_exit = True
