"""The weights of a run's best epoch, on disk: a resumed attempt must know the earlier epochs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn import Module

from infrastructure.agent_contract import Evaluation
from infrastructure.files import FileHash, hash_bytes, write_atomically
from infrastructure.training.checkpoints.fit import compare_model, in_one_line
from infrastructure.training.precision.frozen_base import FrozenBase, OtherBaseError
from infrastructure.training.tensor_files import TensorFileError, read_tensors, tensor_bytes

_DIGEST_BYTES = 65  # in hexadecimal digits, and a line end


class BestEpochError(ValueError):
    """The file of the best epoch cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"cannot use the weights of the best epoch in {path}: {problem}")
        self.path = path


def _refuse(error: BestEpochError) -> None:
    raise error


class BestEpoch:
    """Keeps the weights of the epoch with the best evaluation in one file.

    The selection loss compares evaluations that have one, else their primary metric does.
    Training longer than is useful does no harm then. The file begins with its SHA-256. A damaged
    one counts as none: the next epoch replaces it.

    Args:
        path: File that is read if it exists, and replaced atomically by each better epoch.
        on_damage: Called, once, with what is wrong with *path*; by default it is raised.
        base: Frozen base of the network, which the file holds by hash; None to save all weights.

    Attributes:
        path: File, as given.
        evaluation: Evaluation of the best epoch; None if there is none yet.
    """

    def __init__(
        self,
        path: Path,
        on_damage: Callable[[BestEpochError], None] = _refuse,
        base: FrozenBase | None = None,
    ) -> None:
        self.path, self._on_damage, self._base = path, on_damage, base
        self.evaluation: Evaluation | None = None
        self._damaged = False
        if (saved := self._read()) is not None:
            self.evaluation = saved[0]

    def save_if_better(self, evaluation: Evaluation, network: Module) -> None:
        """Save the weights of *network* if *evaluation* is the best so far; NaN never is.

        Raises:
            OSError: The file cannot be written; the weights saved before are kept.
        """
        best = None if self.evaluation is None else _selected_by(self.evaluation)
        if not _selected_by(evaluation).better_than(best):
            return
        metrics = {name: float(value) for name, value in evaluation.metrics.items()}
        weights, base = network.state_dict(), dict[str, str]()
        if self._base is not None:
            weights, base = self._base.leave_out(weights)
        saved = {
            "metrics": metrics,
            "primary": evaluation.primary,
            "higher_is_better": evaluation.higher_is_better,
            "selection_loss": evaluation.selection_loss,
            "network": weights,
            "frozen_base": base,
        }
        content, hashed = tensor_bytes(saved)
        if os.path.lexists(self.path) and not self.path.is_file():
            self.path.rename(self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}"))
        write_atomically(self.path, _first_line(hashed) + content)
        self.evaluation, self._damaged = evaluation, False

    def keeps_better_than(self, evaluation: Evaluation | None) -> bool:
        """Whether weights are kept that *evaluation* does not beat."""
        if self.evaluation is None:
            return False
        best = _selected_by(self.evaluation)
        return evaluation is None or not _selected_by(evaluation).better_than(best)

    def restore(self, network: Module) -> Evaluation | None:
        """Load the saved weights into *network* and return their evaluation.

        Returns None, and leaves *network* as it is, if nothing was saved, if the file is damaged,
        or if its weights are those of a network with other layers.
        """
        if (saved := self._read()) is None:
            return None
        evaluation, weights = saved
        if problems := in_one_line(compare_model(weights, network)):
            self._report(f"the weights are those of another network: it {problems}")
            return None
        network.load_state_dict(weights)
        return evaluation

    def _read(self) -> tuple[Evaluation, Any] | None:
        """The saved epoch; None, after a report, if it is damaged."""
        if self._damaged or not os.path.lexists(self.path):
            return None
        try:
            if not self.path.is_file():
                raise BestEpochError(self.path, "it is not a regular file")
            data = self.path.read_bytes()
            if data[:_DIGEST_BYTES] != _first_line(hash_bytes(data[_DIGEST_BYTES:])):
                raise BestEpochError(self.path, "it does not match its SHA-256")
            return self._content(data[_DIGEST_BYTES:])
        except (OSError, BestEpochError) as error:
            self._report(error)
            return None

    def _content(self, data: bytes) -> tuple[Evaluation, Any]:
        try:
            saved = read_tensors(data)
        except TensorFileError as error:
            raise BestEpochError(self.path, f"torch cannot read it ({error})") from None
        try:
            network, base = saved.pop("network"), saved.pop("frozen_base", {})
            if self._base is not None:
                network = self._base.put_back(network, base)
            metrics = {name: float(value) for name, value in saved.pop("metrics").items()}
            return Evaluation(metrics=metrics, **saved), network
        except OtherBaseError as error:
            raise BestEpochError(self.path, str(error)) from None
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            problem = "it does not hold the weights of an epoch"
            raise BestEpochError(self.path, problem) from None

    def _report(self, problem: BestEpochError | OSError | str) -> None:
        self._damaged = True
        if not isinstance(problem, BestEpochError):
            problem = BestEpochError(self.path, str(problem))
        self._on_damage(problem)


def _selected_by(evaluation: Evaluation) -> Evaluation:
    """The metric that compares epochs, as the primary one of an evaluation."""
    loss = evaluation.selection_loss
    if loss is None:
        return evaluation
    return Evaluation(metrics={"loss": loss}, primary="loss", higher_is_better=False)


def _first_line(content: FileHash) -> bytes:
    return content.sha256.encode() + b"\n"
