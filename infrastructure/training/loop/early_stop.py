"""Ends a training whose evaluations have stopped improving."""

from __future__ import annotations

import math

from infrastructure.agent_contract import Evaluation


class EarlyStop:
    """Counts evaluations since the best one; its state is saved in checkpoints.

    Args:
        patience: Evaluations without a better one that end the training; None for no end.
    """

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._lowest = math.inf
        self._best_epoch = self._epochs_since = 0

    def note(self, evaluation: Evaluation, epoch: int) -> None:
        """Compare *evaluation*, made after *epoch*, with the best before; NaN is never better."""
        loss = evaluation.selection_loss
        if loss is None:
            loss = -evaluation.value if evaluation.higher_is_better else evaluation.value
        self._epochs_since += 1
        if loss < self._lowest:
            self._lowest, self._best_epoch, self._epochs_since = float(loss), epoch, 0

    @property
    def reason(self) -> str:
        """Why the training ends, for the operator; empty while it goes on."""
        if self._patience is None or self._epochs_since < self._patience:
            return ""
        best = f"that of epoch {self._best_epoch}" if self._best_epoch else "NaN"
        return f"none of the last {self._patience} evaluations was better than {best}"

    def state_dict(self) -> dict[str, float | int]:
        """State for a checkpoint."""
        return {
            "lowest": self._lowest,
            "best_epoch": self._best_epoch,
            "epochs_since": self._epochs_since,
        }

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            KeyError, TypeError, ValueError: *state* is something else.
        """
        self._lowest = float(state["lowest"])
        self._best_epoch, self._epochs_since = int(state["best_epoch"]), int(state["epochs_since"])
