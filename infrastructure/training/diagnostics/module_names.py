"""Names of modules for what is found inside them: operations forward, autograd nodes backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Module
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

_MODULE = "genesis_fp16.module"  # key in the metadata of a node


class RunningModules:
    """A stack of the modules whose ``forward`` is running; ``str()`` names the innermost.

    Its hooks stay on the model until `remove`.
    """

    def __init__(self, model: Module) -> None:
        self._stack = [f"the loss function, outside {type(model).__name__}.forward"]
        self._hooks: list[RemovableHandle] = []
        for name, module in model.named_modules():
            label = f"{name or 'the model'} ({type(module).__name__})"
            self._hooks += [
                module.register_forward_pre_hook(lambda *_, label=label: self._enter(label)),
                module.register_forward_hook(lambda *_: self._leave(), always_call=True),
            ]

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, label: str) -> None:
        self._stack.append(label)

    def _leave(self) -> None:
        self._stack.pop()

    def __str__(self) -> str:
        return self._stack[-1]


class NameNodes(TorchFunctionMode):
    """Writes the running module's name into the autograd node of each result."""

    def __init__(self, running: RunningModules) -> None:
        super().__init__()
        self._running = running

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in floating_tensors(result):
            if tensor.grad_fn is not None:
                _metadata(tensor.grad_fn).setdefault(_MODULE, str(self._running))
        return result


def named_nodes(loss: Tensor) -> Iterator[tuple[Node, str]]:
    """Yield every autograd node behind *loss* with its module, except those of the parameters.

    A node without a name is an inner one of a composite operation: it gets its consumer's.
    """
    stack: list[tuple[Node | None, str]] = [(loss.grad_fn, "the loss")]
    seen: set[Node] = set()
    while stack:
        node, module = stack.pop()
        if node is None or node in seen or hasattr(node, "variable"):
            continue
        seen.add(node)
        module = _metadata(node).get(_MODULE, module)
        yield node, module
        stack.extend((following, module) for following, _ in node.next_functions)


def floating_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the floating tensors in *values*: one, or nested tuples, lists and dicts of them."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from floating_tensors(value)
    elif isinstance(values, dict):
        yield from floating_tensors(list(values.values()))


def _metadata(node: Node) -> dict[str, str]:
    return cast("dict[str, str]", node.metadata)  # a property that torch types as a method
