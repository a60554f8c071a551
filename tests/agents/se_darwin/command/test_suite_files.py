"""The caller's test files, as projects have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.se_darwin.command import suite_files
from agents.se_darwin.command.program_files import ProgramFiles
from agents.se_darwin.command.suite_files import SuiteFiles
from infrastructure.agent_contract.command import CommandError

WRONG_DATA, FOUND_NOTHING = os.EX_DATAERR, os.EX_NOINPUT


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        path = folder / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def program(file: str = "prices.py") -> ProgramFiles:
    path = Path(file)
    return ProgramFiles.read(path, path.read_text() if path.exists() else "")


def test_conftest_files_and_helpers_are_found_up_to_the_working_folder(folder: Path) -> None:
    write(
        folder,
        conftest="import shared",
        shared="",
        other="never imported",
        tests__conftest="from prices import total",
        tests__test_a="import prices, json\nfrom .near import x\nfrom lib.far import y\n"
        "from . import beside",
        tests__near="from . import deeper",
        tests__deeper="",
        tests__beside="",
        lib__far="import shared",
    )
    found = SuiteFiles.read(Path("tests/test_a.py"), program())
    assert found.conftests == ["import shared", "from prices import total"]
    names = {"shared", "near", "lib.far", "__here__.beside", "__here__.deeper"}
    assert found.helpers.keys() == names
    assert found.code.startswith("import prices")


def test_outside_the_working_folder_only_its_own_folder_counts(tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    write(elsewhere, conftest="a = 1", inner__test_a="import b", inner__b="", b="not this")
    found = SuiteFiles.read(elsewhere / "inner" / "test_a.py", program())
    assert (found.conftests, found.helpers) == ([], {"b": ""})


def test_a_folder_beside_the_tests_does_not_hide_a_module_of_python(folder: Path) -> None:
    write(
        folder,
        tests__test_a="from typing import Any\nfrom tests.typing import b",
        tests__typing__INIT="",
    )
    assert SuiteFiles.read(Path("tests/test_a.py"), program()).helpers.keys() == {"tests.typing"}


def test_a_file_beside_the_tests_replaces_a_module_that_pytest_has_not_imported(
    folder: Path,
) -> None:
    write(
        folder,
        tests__test_a="from secrets import ROWS\nimport queue\nimport json",
        tests__secrets="ROWS = [1]",
        tests__queue="",
        tests__json="",
    )
    found = SuiteFiles.read(Path("tests/test_a.py"), program())
    assert found.helpers.keys() == {"secrets", "queue"}


def test_modules_that_pytest_imports_are_known() -> None:
    code = "import pytest, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert "typing" in names & suite_files._IMPORTED_BEFORE
    public = {name for name in names & sys.stdlib_module_names if not name.startswith("_")}
    assert not public - suite_files._IMPORTED_BEFORE


def test_a_byte_order_mark_does_tests_no_harm(folder: Path) -> None:
    (folder / "t.py").write_bytes(b"\xef\xbb\xbfimport a\n")
    assert SuiteFiles.read(Path("t.py"), program()).code == "import a\n"


def test_a_broken_helper_is_named(folder: Path) -> None:
    write(folder, helper="x =")
    (folder / "test_prices.py").write_text("import prices, helper")
    with pytest.raises(CommandError, match=r"helper.py:1"):
        SuiteFiles.read(Path("test_prices.py"), program())


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (b"x =", "test_prices.py:1", WRONG_DATA),
        (None, "test_prices.py", FOUND_NOTHING),
        (b"\xff", "cannot be read", FOUND_NOTHING),
    ],
)
def test_tests_that_cannot_be_read_are_refused(
    content: bytes | None, message: str, code: int
) -> None:
    path = Path("test_prices.py")
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(CommandError, match=message) as caught:
        SuiteFiles.read(path, program())
    assert caught.value.exit_code == code


def test_modules_of_the_program_are_not_helpers(folder: Path) -> None:
    write(
        folder,
        shop__INIT="",
        shop__prices="from . import tax",
        shop__tax="",
        shop__lines="from .tax import rate",
        shop__tests__test_a="from ..prices import total\nfrom ..tax import rate\n"
        "from .made import made\nfrom shop.lines import Line\nimport shop.tax",
        shop__tests__INIT="",
        shop__tests__made="from ..lines import Line",
    )
    own = program("shop/prices.py")
    found = SuiteFiles.read(Path("shop/tests/test_a.py"), own)
    assert found.helpers == {}
    assert found.aliases == {}
    assert found.code.splitlines()[2] == "from shop.tests.made import made"
    assert {"shop.tax", "shop.lines", "shop.tests.made"} <= own.sources.keys()


def test_relative_imports_of_a_package_name_it(folder: Path) -> None:
    write(
        folder,
        tests__INIT="from .base import Base\nclass Shared: pass",
        tests__base="class Base: pass",
        tests__importing__INIT="",
        tests__importing__test_a="from prices import total\n"
        "if True: from .. import Shared; from ..base import (\n    Base)\n"
        "from. import near\nfrom .near import near as other",
        tests__importing__near="",
    )
    found = SuiteFiles.read(Path("tests/importing/test_a.py"), program())
    assert found.helpers.keys() == {
        "tests",
        "tests.base",
        "tests.importing",
        "tests.importing.near",
    }
    assert found.code == (
        "from prices import total\nif True: from tests import Shared; from tests.base import (\n"
        "    Base)\nfrom tests.importing import near\n"
        "from tests.importing.near import near as other"
    )


@pytest.mark.parametrize("source", ["", "\n", "# to be written\n"])
def test_a_test_file_without_tests_is_refused_by_name(folder: Path, source: str) -> None:
    write(folder, tests__test_a=source)
    with pytest.raises(CommandError, match=r"^tests/test_a\.py .*no tests") as caught:
        SuiteFiles.read(Path("tests/test_a.py"), program())
    assert caught.value.exit_code == WRONG_DATA


def test_the_path_of_the_tests_starts_at_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, tests__test_a="import prices")
    assert SuiteFiles.read(folder / "tests" / "test_a.py", program()).path == "tests/test_a.py"
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    assert SuiteFiles.read(Path("../tests/test_a.py"), program()).path == "test_a.py"
