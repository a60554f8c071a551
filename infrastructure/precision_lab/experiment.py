"""A frozen piece of training that can be repeated under any precision, and what it returns.

Legend: B sequences, S predicted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import Role

Region: TypeAlias = Callable[[Role], AbstractContextManager[object]]
"""Context in which a role computes. What runs in it outside of any module is the role's own."""

GRADIENT = "gradient:"
"""Prefix of a gradient's name; the name of the parameter follows."""


class ExperimentResultError(ValueError):
    """A quantity of an outcome is in half precision, on another device, or has no fitting mask."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExperimentResult:
    """What a repetition has computed, as it came out of its roles, in float32 or float64.

    Half results are cast up, so that no digit is lost after the role. Values at masked positions
    are 0.

    Attributes:
        quantities: Tensors on the CPU by name. Of a policy: ``log_probs``, ``old_log_probs``,
            ``reference_log_probs``, ``rollout_log_probs``, ``values``, ``advantages``,
            ``log_ratio`` (policy to reference), ``kl`` (the penalty of each token) and ``ratio``
            (policy to old policy), all ``[B, S]``; ``rewards``, ``[B]``. Of every experiment:
            ``loss``, one for each batch, and ``gradient:<parameter>`` of the mean loss.
        mask_BS: Tokens of the completions, bool; None if there are none.

    Raises:
        ExperimentResultError: See there.
    """

    quantities: Mapping[str, Tensor]
    mask_BS: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in self.quantities.items():
            if value.dtype not in (torch.float32, torch.float64) or value.device.type != "cpu":
                raise ExperimentResultError(
                    f"{name} is {value.dtype} on {value.device}: return it as float32 or float64 "
                    "on the CPU"
                )
            of_tokens = value.ndim == 2 and not name.startswith(GRADIENT)
            if of_tokens and (self.mask_BS is None or value.shape != self.mask_BS.shape):
                raise ExperimentResultError(
                    f"{name} has the shape {tuple(value.shape)}: values of tokens need a mask of "
                    "the same shape"
                )

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the mean loss by the name of their parameter."""
        return {
            name.removeprefix(GRADIENT): value
            for name, value in self.quantities.items()
            if name.startswith(GRADIENT)
        }


class Experiment(Protocol):
    """A frozen piece of training that can be repeated under any precision.

    Implementations are frozen dataclasses: ``dataclasses.replace(experiment, batches=...)`` repeats
    it on other data. The weights of `models` may be changed in place and restored.
    """

    @property
    def models(self) -> Mapping[Role, Module]:
        """Models by role, float32, in evaluation mode, on one device; none share a parameter."""

    @property
    def batches(self) -> Sequence[Batch]:
        """Frozen data on the device of the models."""

    @property
    def keep_fp32(self) -> Sequence[str]:
        """Modules of the trained role that the training itself keeps in FP32."""

    def run(self, region: Region) -> ExperimentResult:
        """Compute everything once, each role within ``region(role)``; deterministic on a CPU.

        The backward pass runs outside of any region, in the types of the forward pass.
        """


def in_fp32(role: Role) -> AbstractContextManager[object]:
    """The region of a repetition without half precision."""
    del role
    return nullcontext()
