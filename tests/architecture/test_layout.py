"""The shape of the house: portions, typed packages, sizes, and nothing of anyone's machine."""

import re
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

Files = Callable[..., list[Path]]
PORTIONS = ("agents", "infrastructure")

# Spelt so that this file does not name what it forbids.
MACHINE_PATH = re.compile("(?<![\\w.])/" + r"(?:work|root|home|Users)/[\w.]")
OUTSIDE_FOLDER = re.compile(r"\.\./" + "shared")


@pytest.mark.parametrize("portion", PORTIONS)
def test_portions_have_no_init_of_their_own(root: Path, portion: str) -> None:
    """Another distribution's folder of that name must survive our installation."""
    assert (root / portion).is_dir()
    assert not (root / portion / "__init__.py").exists()


def test_no_package_under_tests(files: Files) -> None:
    """`tests/infrastructure/__init__.py` would shadow the real one."""
    assert [path for path in files(".py", below=("tests",)) if path.name == "__init__.py"] == []


def test_regular_packages_are_typed(files: Files) -> None:
    packages = {
        path.parent
        for path in files(".py", below=("genesis_fp16", *PORTIONS))
        if path.name == "__init__.py"
    }
    tops = {package for package in packages if package.parent not in packages}
    assert tops, "no package found: this test looks in the wrong place"
    assert [top for top in sorted(tops) if not (top / "py.typed").is_file()] == []


def test_top_level_is_complete(root: Path) -> None:
    expected = ["README.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt"]
    expected += [".env.example", ".ci/run", "docs", "examples", "tests"]
    assert [name for name in expected if not (root / name).exists()] == []


def test_pinned_releases_run_on_the_oldest_python(root: Path) -> None:
    """One that does not makes pip search for minutes and fail, on that Python alone."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    refused = []
    for line in (root / "constraints.txt").read_text().splitlines():
        try:
            wanted = metadata(line.partition("==")[0]).get("Requires-Python", "")
        except PackageNotFoundError:
            continue  # another platform's, or an extra that is not installed here
        if not SpecifierSet(wanted).contains(oldest):
            refused.append(f"{line} needs Python {wanted}")
    assert refused == []


@pytest.mark.parametrize("target", ["run", "test", "check"])
def test_makefile_offers(root: Path, target: str) -> None:
    assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.MULTILINE)


def test_nothing_turns_the_settings_file_into_environment(files: Files, root: Path) -> None:
    """A hot setting in the environment could not be changed live: design decision 10."""
    assert not re.search(r"^-?include\s+\.env", (root / "Makefile").read_text(), re.MULTILINE)
    for path in files(".service", ".yml", ".yaml"):
        assert not re.search(r"EnvironmentFile=|env_file:", path.read_text()), path


def test_no_file_names_a_machine(files: Files, root: Path) -> None:
    named = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files(".py", ".md", ".toml", ".txt", ".example", ".yml", ".yaml", "")
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), start=1)
        if MACHINE_PATH.search(line)
        or (OUTSIDE_FOLDER.search(line) and path.relative_to(root).parts[0] != "tests")
    ]
    assert named == []
