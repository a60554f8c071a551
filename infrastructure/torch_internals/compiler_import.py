"""Import torch's compiler in workers that compile, and in no other.

The first call of an optimizer imports ``torch._dynamo`` (with sympy and much of torch, over a
second of CPU time), because ``torch._disable_dynamo`` wraps some methods so that they are not
compiled. Until something imports the compiler nothing can be compiled, and the wrapped function
alone does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

from torch.optim import Optimizer

from infrastructure.torch_internals.dispatch_mode import TorchDispatchMode

_COMPILER = "torch._dynamo"
_CACHE = "__dynamo_disable"  # where the wrapper of torch/_compile.py keeps what it calls


def defer_compiler_import() -> None:
    """Let optimizers and dispatch modes work without ``torch._dynamo`` until it is imported.

    Applies to the wrapped methods of `Optimizer` and of the `TorchDispatchMode` classes that exist
    now. As soon as anything imports the compiler, ``torch.compile`` in a model for example, torch's
    own behaviour is back before that import begins. Does nothing if the compiler has been imported,
    or for a method that this version of torch wraps in another way.
    """
    if _COMPILER in sys.modules:
        return
    owners: list[type] = [Optimizer, *_subclasses(TorchDispatchMode)]
    methods = [var for owner in owners for var in vars(owner).values()]
    originals = [original for original in map(_original, methods) if original is not None]
    for original in originals:
        setattr(original, _CACHE, original)
    sys.meta_path.insert(0, _CompilerImport(originals))


class _CompilerImport:
    """Import hook that finds nothing: it restores torch's behaviour when the compiler is wanted."""

    def __init__(self, originals: list[Callable[..., object]]) -> None:
        self._originals = originals

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Forget the shortcuts if *name* is the compiler; the usual finders find it."""
        del path, target
        if name == _COMPILER:
            sys.meta_path.remove(self)
            for original in self._originals:
                vars(original).pop(_CACHE, None)
        return None


def _original(method: object) -> Callable[..., object] | None:
    """Function that torch's wrapper of *method* calls; None if it is not wrapped, or otherwise."""
    if not isinstance(method, FunctionType) or _CACHE not in method.__code__.co_consts:
        return None
    original = getattr(method, "__wrapped__", None)
    free = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
    called = {name: cell.cell_contents for name, cell in free}
    return original if original is not None and called.get("fn") is original else None


def _subclasses(owner: type) -> list[type]:
    direct: list[type] = owner.__subclasses__()
    return direct + [subclass for child in direct for subclass in _subclasses(child)]
