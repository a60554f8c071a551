"""The modules of its own that a program imports."""

from pathlib import Path

import pytest

from agents.se_darwin.command import program_files
from agents.se_darwin.command.program_files import ProgramFiles
from infrastructure.agent_contract.command import CommandError


def read(folder: Path, program: str, **sources: str) -> ProgramFiles:
    for name, source in sources.items():
        path = folder / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    path = folder / program
    return ProgramFiles.read(path, path.read_text())


def test_a_package_is_read_as_far_as_it_is_imported(folder: Path) -> None:
    found = read(
        folder,
        "lib/shop/prices.py",
        lib__shop__INIT="from .prices import total",
        lib__shop__prices="import json, numpy\nfrom .tax import rate\nfrom shop import lines",
        lib__shop__tax="from shop.deep.inner import x",
        lib__shop__lines="",
        lib__shop__deep__INIT="",
        lib__shop__deep__inner="from ..tax import rate",
        lib__shop__unused="x = 1",
        lib__shop__json="the standard library is not looked for here =",
    )
    assert found.name == "shop.prices"
    assert found.sources.keys() == {
        "shop.__init__",
        "shop.tax",
        "shop.lines",
        "shop.deep.__init__",
        "shop.deep.inner",
    }


def test_modules_beside_the_program_are_its_own(folder: Path) -> None:
    found = read(
        folder,
        "src/prices.py",
        src__prices="import tax\nfrom rates import high",
        src__tax="import prices",
        rates="",
    )
    assert (found.name, found.sources.keys()) == ("prices", {"tax", "rates"})


def test_a_relative_import_makes_a_folder_a_package(folder: Path) -> None:
    found = read(folder, "a/b/prices.py", a__b__prices="from ..tax import rate", a__tax="")
    assert (found.name, found.sources) == ("a.b.prices", {"a.tax": ""})
    assert found.name_of(folder / "a" / "tax.py") == "a.tax"
    assert found.name_of(folder / "c.py") is None


def test_a_package_may_be_the_program_itself(folder: Path) -> None:
    found = read(
        folder,
        "lib/shop/__init__.py",
        lib__shop__INIT="from . import tax\nfrom .rates import low",
        lib__shop__tax="from shop import total",
        lib__shop__rates="",
        lib__shop__tests__test_a="",
    )
    assert (found.name, found.sources.keys()) == ("shop", {"shop.tax", "shop.rates"})
    assert found.name_of(folder / "lib" / "shop" / "more.py") == "shop.more"


def test_a_package_that_imports_by_text_is_read_whole(folder: Path) -> None:
    found = read(
        folder,
        "shop/prices.py",
        shop__prices="from shop.plugins import load",
        shop__plugins__INIT="def load(name): return import_module(name)",
        shop__INIT="",
        shop__plugins__tax="",
        shop__plugins__template="{{ not python }",
        other="",
    )
    assert {"shop.plugins.__init__", "shop.plugins.tax"} <= found.sources.keys()
    assert "other" not in found.sources


def test_a_module_that_is_not_python_is_named(folder: Path) -> None:
    with pytest.raises(CommandError, match=r"tax\.py:1"):
        read(folder, "prices.py", prices="import tax", tax="x =")


def test_too_many_modules_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MAX_MODULES", 1)
    with pytest.raises(CommandError, match="1 modules"):
        read(folder, "prices.py", prices="import a, b", a="", b="")


def test_a_relative_import_beyond_the_disk_is_left_to_python(folder: Path) -> None:
    dots = "." * 40
    assert read(folder, "prices.py", prices=f"from {dots}x import y").sources == {}


def test_a_link_in_a_package_is_a_module_of_it(folder: Path) -> None:
    (folder / "real.py").write_text("from .tax import rate")
    (folder / "shop").mkdir()
    (folder / "shop" / "prices.py").symlink_to("../real.py")
    found = read(folder, "shop/prices.py", shop__INIT="", shop__tax="")
    assert found.name == "shop.prices"
    assert found.file == (folder / "real.py").resolve()
    assert found.sources.keys() == {"shop.__init__", "shop.tax"}
