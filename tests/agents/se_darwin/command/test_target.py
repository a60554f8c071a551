"""``FILE::FUNCTION`` and its tests, as the user may write them."""

import os
from pathlib import Path

import pytest

from agents.se_darwin.command.target import RepairTarget
from infrastructure.agent_contract.command import CommandError


def test_a_file_is_read_as_it_is(folder: Path) -> None:
    (folder / "a.py").write_bytes(b"def f():\r\n    return '\xc3\xa9'\r\n")
    assert RepairTarget.read("a.py::f").code == "def f():\r\n    return 'é'\r\n"


def test_a_method_is_named_with_its_class(folder: Path) -> None:
    (folder / "a.py").write_text("class A:\n    def f(self): 0\n")
    assert RepairTarget.read("a.py::A.f").function == "A.f"


PROGRAM = "def total(): 0"
FOUND_NOTHING, WRONG_DATA = os.EX_NOINPUT, os.EX_DATAERR


@pytest.mark.parametrize(
    ("files", "target", "message", "code"),
    [
        ({}, "nothere.py::total", r"nothere\.py", FOUND_NOTHING),
        ({}, "prices.py::", "FILE::FUNCTION", os.EX_USAGE),
        ({"a.py": "x = 1"}, "a.py", "a.py defines no function at its top", WRONG_DATA),
        ({}, "prices.py::sum", "'sum'; there are total", WRONG_DATA),
        ({}, "prices.py::totall", r"mean total\?", WRONG_DATA),
        ({"a.py": "class A:\n def f(s): 0"}, "a.py::A.g", r"mean A\.f\?", WRONG_DATA),
        ({"a.py": "class A:\n def f(s): 0"}, "a.py::B.f", r"mean A\.f\?", WRONG_DATA),
        ({"a.py": "class A:\n def f(s): 0"}, "a.py::f", "A.f is a method", WRONG_DATA),
        ({"a.py": "class A: 0"}, "a.py::A", "A is a class", WRONG_DATA),
        ({"a.py": "f = lambda x: x"}, "a.py::f", "`def f", WRONG_DATA),
        ({"a.py": "def g():\n def f(): 0"}, "a.py::f", "g.f .* in g: repair g", WRONG_DATA),
        ({"a.py": "if 1:\n def f(): 0"}, "a.py::f", "in another statement", WRONG_DATA),
        ({"a.py": b"\xef\xbb\xbfdef f(): 0"}, "a.py::f", "byte order mark", WRONG_DATA),
        ({"a.py": b"x = '\xe9'"}, "a.py::f", "UTF-8", FOUND_NOTHING),
        ({"a.py": "x = " + "-" * 100_000 + "1"}, "a.py::f", "a.py", WRONG_DATA),
        ({"a.py": "def total(:"}, "a.py::total", "a.py:1", WRONG_DATA),
        ({"a.py/b": ""}, "a.py::f", "a.py .* Is a dir", FOUND_NOTHING),
        ({"a.py": "\0"}, "a.py::total", "^a.py is not Python", WRONG_DATA),
        ({"my-mod.py": PROGRAM}, "my-mod.py::total", "my_mod.py", WRONG_DATA),
        ({"if.py": PROGRAM}, "if.py::total", "_if.py", WRONG_DATA),
        ({"2.py": PROGRAM}, "2.py::total", "_2.py", WRONG_DATA),
    ],
)
def test_a_target_that_cannot_be_repaired_is_refused_by_name(
    folder: Path, files: dict[str, str | bytes], target: str, message: str, code: int
) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CommandError, match=message) as caught:
        RepairTarget.read(target)
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("target", "path", "within"),
    [
        ("prices.py::total", "prices.py", "."),
        ("./prices.py::total", "prices.py", "."),
        ("{folder}/prices.py::total", "prices.py", "."),
        ("link.py::total", "real.py", "elsewhere"),
        ("elsewhere/../prices.py::total", "prices.py", "."),
        ("../shop/tax.py::total", "tax.py", "../shop"),
    ],
)
def test_a_diff_names_the_file_so_that_it_can_be_applied(
    folder: Path,
    prices: str,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    path: str,
    within: str,
) -> None:
    work = folder / "work"
    for name in ("work/elsewhere/real.py", "work/prices.py", "shop/tax.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(prices)
    (work / "link.py").symlink_to("elsewhere/real.py")
    monkeypatch.chdir(work)
    found = RepairTarget.read(target.format(folder=work))
    assert (found.folder / found.path).samefile(work / within / path)
    assert found.folder == (work / within if within == "../shop" else work).resolve()
