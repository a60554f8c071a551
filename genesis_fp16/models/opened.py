"""A published model in this process, exchanged when another version is published."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from genesis_fp16.models.published import PublishedModel, load_published, mark_of
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.agent_contract.transition import Box, FieldType, TransitionSpec
from infrastructure.trajectories.schema import Values
from infrastructure.world_model import Prediction, WorldModel
from infrastructure.world_model.fitting import FittedModel


class NoModelError(LookupError):
    """Nothing that this process can use is published; the message says why."""


class OpenedModel:
    """The model that is published for an agent now; safe in several threads, one at a time.

    Each call looks whether another version is published, which takes some microseconds, and lets
    torch compute with one thread: for so few rows several only wait for one another. If a new
    version cannot be read, the one before stays in use.

    Args:
        agent_folder: Folder of the agent in GENESIS_HOME.
    """

    def __init__(self, agent_folder: Path) -> None:
        self._folder, self._lock = agent_folder, threading.Lock()
        self._current = load_published(agent_folder)

    @property
    def version(self) -> str | None:
        """Id of the version in use; None if there is none."""
        with self._lock:
            return self._newest().version

    @property
    def fitted(self) -> FittedModel:
        """What the version in use has fitted, for `onnx_inputs`; it is not exchanged.

        Raises:
            NoModelError: No model can be used.
        """
        with self._in_use() as model:
            if model.fitted_model is None:
                raise NoModelError(f"the model of {self._folder.name} was saved before a fit")
            return model.fitted_model

    def rank(self, observation: Values, actions: Sequence[Values]) -> list[int]:
        """See `WorldModel.rank`.

        Raises:
            NoModelError: No model can be used.
            ValueError: A field is of a wrong type, or a number infinite; it is named.
        """
        with self._in_use() as model:
            _check(model.spec, [observation], actions)
            return model.rank(observation, actions)

    def predict_batch(
        self, observations: Sequence[Values], actions: Sequence[Values]
    ) -> list[Prediction]:
        """See `WorldModel.predict_batch`.

        Raises:
            NoModelError: No model can be used.
            ValueError: A field is of a wrong type, or a number infinite; it is named.
        """
        with self._in_use() as model:
            _check(model.spec, observations, actions)
            return model.predict_batch(observations, actions)

    @contextmanager
    def _in_use(self) -> Iterator[WorldModel]:
        with self._lock:
            newest = self._newest()
            if newest.model is None:
                reason = newest.problem or "no model is published yet"
                if not self._folder.is_dir():
                    reason = f"{self._folder.parent} has no folder of this agent"
                raise NoModelError(f"{self._folder.name} has no model to use: {reason}")
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                yield newest.model
            finally:
                torch.set_num_threads(threads)

    def _newest(self) -> PublishedModel:
        if mark_of(self._folder) != self._current.mark:
            loaded = load_published(self._folder)
            if loaded.model is not None or not loaded.problem or self._current.model is None:
                self._current = loaded
        return self._current


def open(agent: str, home: Path | str = ".genesis") -> OpenedModel:
    """Open the published model of *agent*.

    Args:
        agent: Name of the agent.
        home: GENESIS_HOME of the daemon.

    Raises:
        ValueError: *agent* is not a name of an agent.
        FileNotFoundError: *home* is not there.
    """
    if not AGENT_NAME.fullmatch(agent):
        raise ValueError(f"{agent!r:.60} is not a name of an agent")
    if not Path(home).is_dir():
        raise FileNotFoundError(
            f"there is no folder {Path(home).absolute()}: give the daemon's GENESIS_HOME as home"
        )
    return OpenedModel(Path(home) / "agents" / agent)


def _check(spec: TransitionSpec, observations: Sequence[Values], actions: Sequence[Values]) -> None:
    """Refuse what the predictor refuses and the model would take: no mapping, infinite numbers.

    Raises:
        ValueError: A value is one of these; it is named.
    """
    parts: tuple[tuple[str, Mapping[str, FieldType], Sequence[Values]], ...]
    parts = (("observation", spec.observation, observations), ("action", spec.action, actions))
    for part, fields, rows in parts:
        boxes = [name for name, field in fields.items() if isinstance(field, Box)]
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"{part} must be a mapping of fields, got {type(row).__name__}")
            for name in boxes:
                value = row.get(name)
                if isinstance(value, float | np.floating | Sequence | np.ndarray):
                    _check_finite(f"{part} {name!r}", value)


def _check_finite(name: str, value: object) -> None:
    try:
        infinite = np.isinf(np.asarray(value, dtype=np.float64)).any()
    except (ValueError, TypeError, OverflowError):
        return  # the model names what is of a wrong type
    if infinite:
        raise ValueError(
            f"{name} must be finite, or None or NaN if it is missing, got {value!r:.60}"
        )
