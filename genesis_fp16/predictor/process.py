"""Life of a predictor: one thread of torch, orders of the daemon, reports to it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
from functools import partial
from typing import BinaryIO

import torch
import uvicorn

from genesis_fp16.domain.predictor import PredictorOrder, PredictorSpec
from genesis_fp16.plugins import PluginRefusedError, load_agent
from genesis_fp16.plugins.discovery import definition_of
from genesis_fp16.predictor.app import App
from genesis_fp16.predictor.figures import REPORT_SECONDS, Figures
from genesis_fp16.predictor.gate import Gate
from genesis_fp16.predictor.server import serve
from genesis_fp16.system.permissions import private_umask
from genesis_fp16.system.tokens import Tokens
from infrastructure.world_model.model_files import BuildNetwork

SWITCH_SECONDS = 1e-4
"""Time after which a thread that computes makes way for one that answers. Each operation of torch
gives up the interpreter's lock; at Python's 5 ms, an answer of 200 operations would take a second
beside a thread that judges outcomes or encodes a large text."""


def run(spec: PredictorSpec, orders: BinaryIO, reports: BinaryIO) -> None:
    """Serve as *spec* says until SIGTERM, or the end of *orders*."""
    torch.set_num_threads(1)  # of few rows, several threads only wait for one another
    sys.setswitchinterval(SWITCH_SECONDS)
    listeners = [socket.socket(fileno=descriptor) for descriptor in spec.listeners]
    figures, build_network = Figures(), None
    if spec.own is not None:
        reports = _keep_from_plugin(reports)
        try:
            build_network = _own_network(spec, spec.own)
        except PluginRefusedError as error:
            figures.notice("agent_not_loaded", agent=spec.own, reason=str(error))
            figures.write(reports)
            sys.exit(error.exit_code)
    tokens = Tokens(spec.token, spec.token_file, notice=figures.notice)  # stdout is for reports
    app = App(spec, Gate(tokens), figures, build_network=build_network)
    reporting = threading.Thread(
        target=figures.report_to, args=(reports, app.models.describe), daemon=True
    )
    reporting.start()
    gc.collect()
    gc.freeze()  # what was imported is not searched for garbage again: pauses stay short
    try:
        with private_umask(spec.home):
            serve(app, listeners, partial(_begin, orders, app, figures))
    finally:
        app.close()
        figures.end()
        reporting.join()


def _own_network(spec: PredictorSpec, name: str) -> BuildNetwork:
    """Import the agent *name*, whose network this process builds.

    Raises:
        PluginRefusedError: It cannot be imported, or has no network of its own.
    """
    entry_point, definition = spec.agents[name].entry_point, definition_of(spec.home, name)
    agent = load_agent(entry_point, name, definition=definition)
    build: BuildNetwork | None = getattr(agent, "build_model", None)
    if build is None:
        raise PluginRefusedError(f"{entry_point} has no build_model, which its model needs")
    return build


def _keep_from_plugin(reports: BinaryIO) -> BinaryIO:
    """*reports* for us alone; what a plugin prints is discarded."""
    ours = os.fdopen(os.dup(reports.fileno()), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    return ours


def _begin(orders: BinaryIO, app: App, figures: Figures, server: uvicorn.Server) -> None:
    """Beat, and obey *orders*, from now on."""
    app.begin()
    _beat(asyncio.get_running_loop(), figures)
    _follow(orders, app, server)


def _beat(loop: asyncio.AbstractEventLoop, figures: Figures) -> None:
    figures.beat()
    loop.call_later(REPORT_SECONDS / 2, _beat, loop, figures)


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
