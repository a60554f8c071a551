"""Bugs in asynchronous functions of packages on PyPI, written down before the sandbox ran any.

Each file of the folder ``asynchronous`` names a module of a pinned package, and lines of one
asynchronous function that a mistake replaces: a wrong comparison, a lost condition, the wrong end
of a queue. The tests were written for this purpose, with `asyncio.run`, with the marks of
pytest-asyncio and anyio, and with `unittest.IsolatedAsyncioTestCase`; they sleep for minutes. The
module comes from the package's wheel, which pip downloads; its relative imports become absolute,
so packages other than those that are one module must be installed, as with all extras.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import zipfile
from importlib.util import resolve_name
from pathlib import Path

from benchmarks.se_darwin.foreign.bug import ForeignBug

WHEELS = Path("benchmark_results/.cache/foreign/wheels")
_FOLDER = Path(__file__).parent / "asynchronous"
_FILE = re.compile(
    r"package: ([^\n]+)\npath: ([^\n]+)\nsha256: ([^\n]+)\nfunction: ([^\n]+)\nfault: [^\n]+\n"
    + "".join(
        rf"\n=== {heading} ===\n(.*\n)"
        for heading in ("right lines", "wrong lines", "tests", "hidden tests")
    ),
    re.DOTALL,
)


def asynchronous_bugs(wheels: Path = WHEELS) -> list[ForeignBug]:
    """Return the bugs in the order of their names.

    Args:
        wheels: Folder of wheels; missing ones are downloaded.

    Raises:
        ValueError: A wheel cannot be downloaded, or has another text.
    """
    return [_read(file, wheels) for file in sorted(_FOLDER.glob("*.txt"))]


def _read(file: Path, wheels: Path) -> ForeignBug:
    match = _FILE.fullmatch(file.read_text())
    if match is None:
        raise ValueError(f"{file} lacks a field or a heading")
    package, path, digest, function, right, wrong, tests, hidden_tests = match.groups()
    source = _module(package, path, wheels)
    if hashlib.sha256(source.encode()).hexdigest() != digest or source.count(right) != 1:
        raise ValueError(f"{path} of {package} is not the text that {file} was written for")
    return ForeignBug(
        source="asynchronous",
        name=file.stem,
        code=_with_absolute_imports(source.replace(right, wrong), path),
        function=function,
        test_code=tests,
        hidden_test_code=hidden_tests,
        right_code=_with_absolute_imports(source, path),
    )


def _module(package: str, path: str, wheels: Path) -> str:
    """Text of the module *path* in the wheel of *package*, ``name==version``."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        wheels.mkdir(parents=True, exist_ok=True)
        options = ("-q", "--no-deps", "--only-binary=:all:", "--dest", str(wheels))
        command = [sys.executable, "-m", "pip", "download", *options, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{package} cannot be downloaded: {done.stderr.strip()}")
    with zipfile.ZipFile(next(wheels.glob(pattern))) as wheel:
        return wheel.read(path).decode()


def _with_absolute_imports(source: str, path: str) -> str:
    package = path.rpartition("/")[0].replace("/", ".")
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            name = resolve_name("." * node.level + (node.module or ""), package)
            lines[node.lineno - 1] = re.sub(
                r"from [.]+\w*(?:[.]\w+)*", f"from {name}", lines[node.lineno - 1], count=1
            )
    return "\n".join(lines)
