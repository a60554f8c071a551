import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.plugins.scan import FoundAgent, Scan, marks_of, scan_installed

HOME = Path("/nonexistent")  # without definitions of configured agents


def find(name: str) -> tuple[FoundAgent, Scan]:
    scan = scan_installed(HOME)
    [agent] = [agent for agent in scan.agents if agent.point.name == name]
    return agent, scan


def test_a_fingerprint_changes_with_what_decides_a_probe(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    install_plugin("fine")
    site = tmp_path / "site"
    agent, scan = find("fine")
    again, scan_again = find("fine")
    assert again == agent
    # Other tests may create files in the project's folder, which is on the path.
    assert scan_again.model_copy(update={"folders": scan.folders}) == scan
    assert (agent.module, agent.loose, agent.problem) == ("fine_plugin", True, "")
    [(path, _, size)] = scan.modules["fine_plugin"]
    assert (path, size) == (str(site / "fine_plugin.py"), (site / "fine_plugin.py").stat().st_size)
    assert "fine_plugin" not in sys.modules
    assert Scan.model_validate_json(scan.model_dump_json()) == scan

    fingerprints = {agent.fingerprint}
    source = site / "fine_plugin.py"
    source.write_text(source.read_text() + "\n")
    fingerprints.add(find("fine")[0].fingerprint)
    assert find("fine")[1].environment == scan.environment
    info = site / "fine_plugin-1.5.dist-info"
    (info / "RECORD").write_text("fine_plugin.py,sha256=x,1\n")
    recorded = find("fine")[0]
    assert not recorded.loose
    fingerprints.add(recorded.fingerprint)
    (info / "RECORD").write_text("fine_plugin.py,sha256=y,1\n")
    fingerprints.add(find("fine")[0].fingerprint)
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.5", "1.6"))
    fingerprints.add(find("fine")[0].fingerprint)
    assert len(fingerprints) == 5


def test_any_distribution_changes_the_environment(
    install_plugin: Callable[..., None], tmp_path: Path
) -> None:
    before = scan_installed(HOME)
    (tmp_path / "site" / "notes.txt").touch()
    assert scan_installed(HOME).environment == before.environment
    assert marks_of(path for path, *_ in before.folders) != before.folders
    install_plugin("tool", group="genesis.commands")
    assert scan_installed(HOME).environment != before.environment


def test_strange_files_hide_no_others(install_plugin: Callable[..., None], tmp_path: Path) -> None:
    install_plugin("fine")
    site = tmp_path / "site"
    package = site / "fine_plugin"
    (site / "fine_plugin.py").unlink()
    package.mkdir()
    (package / "__init__.py").touch()
    Path(os.fsdecode(bytes(package) + b"/\xff.py")).touch()
    for number in range(20):
        (site / f"{number}.pth").symlink_to(site / "nowhere")
    agent, scan = find("fine")
    assert Scan.model_validate_json(scan.model_dump_json()) == scan
    assert [path for path, *_ in scan.modules["fine_plugin"]] == [str(package / "__init__.py")]
    install_plugin("tool", group="genesis.commands")
    assert scan_installed(HOME).environment != scan.environment
    assert agent.problem == ""


@pytest.mark.parametrize("target", ["no_such_module:Agent", "", ".:x", "os:environ"])
def test_an_entry_point_without_code_has_no_files(
    install_plugin: Callable[..., None], tmp_path: Path, target: str
) -> None:
    install_plugin("odd")
    points = tmp_path / "site" / "odd_plugin-1.5.dist-info" / "entry_points.txt"
    points.write_text(f"[genesis.agents]\nodd = {target}\n")
    agents = [agent for agent in scan_installed(HOME).agents if agent.point.name == "odd"]
    assert all(agent.fingerprint for agent in agents)


def test_definitions_are_watched(tmp_path: Path) -> None:
    before = scan_installed(tmp_path)
    assert (str(tmp_path / "agents.d"), 0, 0) in before.folders
    (tmp_path / "agents.d").mkdir()
    path = tmp_path / "agents.d" / "seo.toml"
    path.write_text("[source]\n")
    (path.parent / "name-of-other-bytes-\udcff.toml").touch()
    scan = scan_installed(tmp_path)
    assert Scan.model_validate_json(scan.model_dump_json()) == scan
    wrong, agent = [agent for agent in scan.agents if agent.point.definition]
    assert "valid agent name" in wrong.problem
    assert (agent.point.name, agent.loose, agent.problem) == ("seo", False, "")
    assert scan.environment == before.environment
    watched = [mark for mark in scan.folders if mark[0] == str(path)]
    assert marks_of([str(path)]) == watched
    path.write_text("[source]\nx = 1\n")
    assert marks_of([str(path)]) != watched
    _, changed = [agent for agent in scan_installed(tmp_path).agents if agent.point.definition]
    assert changed.fingerprint != agent.fingerprint
