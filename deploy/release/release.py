"""``make release``: both distributions, built, described and tried in a bare environment.

Nothing is uploaded. In ``dist/`` lie afterwards wheel and source of both distributions, a software
bill of materials (CycloneDX) of what the wheels install, the section of the changelog, and the
SHA-256 of each file. It refuses a changed working tree, a version that the two distributions do
not share, and a changelog without a dated section of that version.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = (ROOT, ROOT / "clients" / "python")
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
_HEADING = r"^## {version} - (?P<date>\S+)\n(?P<text>.*?)(?=^## |\Z)"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class NotReadyError(RuntimeError):
    """The repository is not ready for a release; the message has the remedy."""


def version() -> str:
    """The version that both distributions state.

    Raises:
        NotReadyError: They differ.
    """
    files = (ROOT / "genesis_fp16/__init__.py", ROOT / "clients/python/genesis_client/__init__.py")
    stated = {str(_VERSION.findall(file.read_text())[0]) for file in files}
    if len(stated) != 1:
        raise NotReadyError(
            f"the distributions state {' and '.join(sorted(stated))}: make them one"
        )
    return stated.pop()


def changes_of(changelog: str, release: str, *, draft: bool) -> str:
    """The changelog's section of *release*.

    Raises:
        NotReadyError: There is none, or it has no date and *draft* is false.
    """
    heading = _HEADING.format(version=re.escape(release))
    section = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if section is None:
        raise NotReadyError(f"CHANGELOG.md has no section '## {release} - DATE'")
    if not draft and not _DATE.fullmatch(section["date"]):
        raise NotReadyError(
            f"CHANGELOG.md says '## {release} - {section['date']}': write the day of the release, "
            "or try with --draft"
        )
    return section["text"].strip() + "\n"


def check_wheel(path: Path) -> None:
    """Check that a built wheel holds what it must and nothing of the tests.

    Raises:
        NotReadyError: It does not.
    """
    names = zipfile.ZipFile(path).namelist()
    foreign = [name for name in names if name.startswith(("tests/", "benchmarks/", "deploy/"))]
    needed = ["genesis_client/py.typed"]
    if path.name.startswith("genesis_fp16"):
        needed = [
            *("genesis_fp16/py.typed", "genesis_fp16/api/page/site/index.html"),
            *("genesis_fp16/store/migrations/env.py", "agents/se_darwin/prior/prior.json"),
        ]
    missing = [name for name in needed if name not in names]
    if foreign or missing:
        raise NotReadyError(f"{path.name} holds {foreign[:3]} and lacks {missing}")


def _run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, check=False, capture_output=True, text=True
    )
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise NotReadyError(f"{shown} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def _try(wheels: list[Path], release: str, tools: Path, sbom: Path) -> None:
    """Install *wheels* into a bare environment, use them there, and list what they installed."""
    with tempfile.TemporaryDirectory(prefix="genesis-release-") as folder:
        bare = Path(folder) / "environment"
        _run(sys.executable, "-m", "venv", bare)
        python, program = bare / "bin" / "python", bare / "bin" / "genesis-fp16"
        pip = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
        _run(*pip, *wheels, cwd=Path(folder))
        _run(python, "-m", "pip", "check", cwd=Path(folder))
        for line in (
            f"import genesis_client; assert genesis_client.__version__ == '{release}'",
            f"import genesis_fp16; assert genesis_fp16.__version__ == '{release}'",
            "from infrastructure.training import FP16Trainer",
        ):
            _run(python, "-c", line, cwd=Path(folder))
        _run(program, "config", "show", cwd=Path(folder))
        listed = _run(program, "agents", "--json", cwd=Path(folder))
        if '"se-darwin"' not in listed or '"ready"' not in listed:
            raise NotReadyError(f"the built wheel does not know its agents: {listed[:500]}")
        _run(tools / "cyclonedx-py", "environment", "--output-file", sbom, python)


def main() -> None:
    """Build everything into ``dist/``."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument(
        "--draft", action="store_true", help="accept changes and an undated section"
    )
    parser.add_argument(
        "--tools", type=Path, required=True, help="folder of build and cyclonedx-py"
    )
    options = parser.parse_args()
    tools, target = options.tools.absolute(), ROOT / "dist"
    try:
        release = version()
        changes = changes_of((ROOT / "CHANGELOG.md").read_text(), release, draft=options.draft)
        if not options.draft and _run("git", "status", "--porcelain"):
            raise NotReadyError("the working tree has changes: commit them, or try with --draft")
        shutil.rmtree(target, ignore_errors=True)
        for distribution in DISTRIBUTIONS:
            _run(tools / "python", "-m", "build", "--outdir", target, distribution)
        wheels = sorted(target.glob("*.whl"))
        for wheel in wheels:
            check_wheel(wheel)
        _try(wheels, release, tools, target / "sbom.cyclonedx.json")
        (target / "CHANGES.md").write_text(changes)
    except NotReadyError as error:
        sys.exit(f"no release: {error}")
    files = sorted(path for path in target.iterdir() if path.name != "SHA256SUMS")
    sums = "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (target / "SHA256SUMS").write_text(sums)
    sys.stdout.write(f"{release}, tried in a bare environment:\n{sums}")
    if not options.draft:
        sys.stdout.write(f"next: git tag -s v{release} && git push origin v{release}\n")


if __name__ == "__main__":
    main()
