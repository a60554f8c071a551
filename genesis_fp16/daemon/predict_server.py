"""A predictor on a machine without the daemon: models come from a bucket, outcomes go there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import structlog
from filelock import FileLock, Timeout

from genesis_fp16.daemon.log import configure_logging
from genesis_fp16.daemon.prediction import PredictionService
from genesis_fp16.daemon.predictors_elsewhere import Repeated, ServerSide
from genesis_fp16.daemon.predictors_elsewhere.objects import PLACE
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.predictor import KnownAgent
from genesis_fp16.settings import Settings
from genesis_fp16.system.bucket import Bucket
from genesis_fp16.system.permissions import private_umask
from genesis_fp16.system.signals import Signals

TICK_SECONDS = 0.05
_LOCK = "predict-server.lock"

log = structlog.get_logger()


class PredictServerError(GenesisError, RuntimeError):
    """The server cannot use its folder; the message says why."""

    exit_code = os.EX_TEMPFAIL


def serve_predictions(settings: Settings, url: str) -> None:
    """Answer running agents until SIGTERM or SIGINT; listens once models were fetched.

    What is acknowledged is on the disk of GENESIS_HOME, and sent to the bucket within seconds; at
    the end, all of it.

    Raises:
        GenesisError: The folder is a daemon's, or another server's; or a setting is wrong.
    """
    configure_logging(settings)
    home = settings.home.absolute()
    if (home / "daemon.lock").exists():
        raise PredictServerError(
            f"{home} is a daemon's home, which answers by itself: set GENESIS_HOME to a folder for "
            "this server"
        )
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        stack.enter_context(private_umask(home))
        try:
            stack.enter_context(FileLock(home / _LOCK, timeout=0))
        except Timeout:
            raise PredictServerError(f"another predict-server uses {home}") from None
        side = ServerSide(home, Bucket(url).below(PLACE))
        exchange = stack.enter_context(closing(Repeated(side.step, last=True)))
        log.info("predict_server_started", url=url, home=str(home), server=side.server)
        if not _wait(exchange.done.is_set, signals):
            return
        service = PredictionService(settings, lambda: _known(settings, side), lambda *_: None)
        stack.enter_context(closing(service))
        log.info("predict_server_ready", agents=len(side.agents))
        while not signals.stop_count:
            service.tick()
            time.sleep(TICK_SECONDS)
    log.info("predict_server_stopped")


def _wait(condition: Callable[[], bool], signals: Signals) -> bool:
    while not condition():
        if signals.stop_count:
            return False
        time.sleep(TICK_SECONDS)
    return True


def _known(settings: Settings, side: ServerSide) -> dict[str, KnownAgent]:
    return {name: KnownAgent(explore=settings.for_agent(name).explore) for name in side.agents}
