"""Private parts of torch stand in `infrastructure/torch_internals` and nowhere else."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Files = Callable[..., list[Path]]
FOLDER = Path("infrastructure/torch_internals")
OF_PYTHON = {"_exit", "_replace", "_inst"}  # of os, named tuples and the random module


def _is_private(path: str) -> bool:
    """Whether a part of a dotted name begins with one underscore."""
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, name in this module and full name of each import from torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported_names = [
                (alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom):
            imported_names = [(a.asname or a.name, f"{node.module}.{a.name}") for a in node.names]
        else:
            continue
        for name, imported in imported_names:
            if imported.split(".")[0] == "torch":
                yield node.lineno, name, imported


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)) is not None:
        return f"{owner}.{node.attr}"
    return None


def _defined(tree: ast.Module) -> Iterator[str]:
    """Names that the module defines: functions, classes, fields and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"self", "cls"}
        ):
            yield node.attr


def _private_parts(source: str) -> list[str]:
    """Private names of torch in *source*, and private attributes that it does not define itself."""
    tree = ast.parse(source)
    imports = list(_imports(tree))
    private = [f"{line}: {name}" for line, _, name in imports if _is_private(name)]
    names = {name for _, name, _ in imports}
    if not names:
        return private
    ours = {*_defined(tree), *OF_PYTHON}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            dotted = _dotted(node) or f"<expression>.{node.attr}"
            if dotted.split(".")[0] in names or node.attr not in ours:
                private.append(f"{node.lineno}: {dotted}")
    return private


def test_private_parts_of_torch_stand_in_one_folder(files: Files, root: Path) -> None:
    paths = files(".py", below=("genesis_fp16", "infrastructure", "agents"))
    inside = [path for path in paths if path.is_relative_to(root / FOLDER)]
    assert any(_private_parts(path.read_text()) for path in inside)
    misplaced = [
        f"{path.relative_to(root)}:{part}"
        for path in paths
        if path not in inside
        for part in _private_parts(path.read_text())
    ]
    assert misplaced == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._foreach_add_(a, b)",
        "import torch\nx = torch._C._nn.silu",
        "import torch as t\nt.utils._pytree",
        "import torch._dynamo",
        "from torch.utils import _pytree",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "def late():\n    from torch._C import _autograd",
        "from torch import nn\nnn.modules.dropout._DropoutNd",
        "import torch\noptimizer._opt_called = True",
        "import torch\nmodule()._get_fsdp_state()",
    ],
)
def test_the_test_itself_can_fail(source: str) -> None:
    assert _private_parts(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import os\nos._exit(0)",
        "import torch\nclass A:\n    _b = 1\n    def c(self, other):\n        return other._b",
        "from collections import _x",
    ],
)
def test_public_names_and_our_own_pass(source: str) -> None:
    assert not _private_parts(source)
