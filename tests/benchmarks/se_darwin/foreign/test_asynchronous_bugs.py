import ast
import re
from pathlib import Path

import pytest

from benchmarks.se_darwin.foreign import asynchronous_bugs
from benchmarks.se_darwin.foreign.asynchronous_bugs import _with_absolute_imports

FOLDER = Path(asynchronous_bugs.__file__).parent / "asynchronous"
FILES = sorted(FOLDER.glob("*.txt"))


def test_there_are_25_bugs_of_pinned_packages() -> None:
    assert len(FILES) == 25
    for file in FILES:
        assert re.match(r"package: [\w-]+==[\d.]+\n", file.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_visible_and_hidden_tests_are_python_and_differ(file: Path) -> None:
    match = asynchronous_bugs._FILE.fullmatch(file.read_text())

    assert match is not None
    *_, right, wrong, tests, hidden_tests = match.groups()
    assert right != wrong
    assert ast.dump(ast.parse(tests)) != ast.dump(ast.parse(hidden_tests))


def test_relative_imports_become_absolute() -> None:
    source = "from . import a\nfrom .b import (\n    c,\n)\nfrom ..d import e\nimport f\n"

    expected = "from p.q import a\nfrom p.q.b import (\n    c,\n)\nfrom p.d import e\nimport f\n"
    assert _with_absolute_imports(source, "p/q/r.py") == expected
