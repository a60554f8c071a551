"""Whether a trainer's model can be stepped with others, and why not."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import nn
from torch.nn import Module

from infrastructure.fleet.forms import NotStackableError, StackedForm
from infrastructure.fleet.sequential import SequentialForm
from infrastructure.torch_internals.modules import has_hooks
from infrastructure.training import FP16Trainer
from infrastructure.training.evaluation_weights import averaging_optimizers


def not_stackable_reason(model: Module) -> str | None:
    """Reason *model* cannot be computed together with others of its shape, or None."""
    try:
        stacked_form(model)
    except NotStackableError as error:
        return error.reason
    return None


def stacked_form(model: Module) -> StackedForm:
    """The stacked form of *model*: an ``nn.Sequential``, or what its ``stacked_form()`` returns.

    Raises:
        NotStackableError: It has none.
    """
    for name, module in model.named_modules(remove_duplicate=False):
        if has_hooks(module) or "forward" in vars(module):
            raise NotStackableError(f"module {name!r} has hooks or a replaced forward()")
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) != len(list(model.parameters())):
        raise NotStackableError("modules of the model share parameters")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise NotStackableError(f"parameter {name} is frozen")
    if type(model) is nn.Sequential:
        return SequentialForm(model)
    make_form: Callable[[], StackedForm] | None = getattr(model, "stacked_form", None)
    if make_form is None:
        raise NotStackableError(
            f"{type(model).__name__} has a forward() of its own: a fleet can compute nn.Sequential "
            "and models with a stacked_form()"
        )
    return make_form()


def stack_key(trainer: FP16Trainer, form: StackedForm) -> Hashable:
    """Equal for trainers that one fleet can step together.

    Raises:
        NotStackableError: The trainer does something in its step that a fleet does not.
    """
    config = trainer.config
    for unsupported, what in (
        (config.accumulate > 1, "its gradients are accumulated over micro-batches"),
        (bool(config.keep_fp32), "some of its modules are kept in FP32"),
        (config.detect_anomaly, "it detects anomalies"),
        (config.cuda_graph, "its steps are CUDA graphs"),
        (trainer.compiled is not None, "its model is compiled"),
        (trainer.is_distributed, "several ranks share its model"),
        (trainer.model_cast_requested, "its model is held in FP16"),
        (bool(averaging_optimizers(trainer.optimizer)), "its optimizer averages the weights"),
    ):
        if unsupported:
            raise NotStackableError(what)
    chosen = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    parameters = list(trainer.model.parameters())
    if len(chosen) != len(parameters) or any(
        a is not b for a, b in zip(chosen, parameters, strict=True)
    ):
        raise NotStackableError(
            "its optimizer holds only some of the model's parameters, or in another order"
        )
    if any(p.dtype != torch.float32 or not p.is_contiguous() for p in parameters):
        raise NotStackableError("a parameter is not a contiguous float32 tensor")
    shapes = tuple((name, p.shape) for name, p in trainer.model.named_parameters())
    return (trainer.device, form.key, shapes)
