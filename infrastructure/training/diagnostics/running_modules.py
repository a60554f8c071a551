"""Which module is running: a name for whatever is found inside it."""

from __future__ import annotations

from torch.nn import Module
from torch.utils.hooks import RemovableHandle


class RunningModules:
    """A stack of the modules whose ``forward`` is running; ``str()`` names the innermost.

    Its hooks stay on the model until `remove`.
    """

    def __init__(self, model: Module) -> None:
        self._stack = [f"the loss ({type(model).__name__} is not running)"]
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
