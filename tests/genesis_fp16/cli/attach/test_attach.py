"""``attach`` and ``detach`` on a checkout like Genesis'."""

import errno
import grp
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.cli.configured_agents import GENESIS_AGENTS
from genesis_fp16.plugins.loading import load_agent
from genesis_fp16.settings import load_settings
from genesis_fp16.store.lock import DaemonLock
from infrastructure.trajectories.record_source import read_definition
from tests.genesis_fp16.cli.attach.genesis_checkout import make_checkout
from tests.genesis_fp16.cli.test_configured_agents import WRITTEN_BY, trajectory_of

Ask = Callable[..., Result]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "genesis")


@pytest.fixture
def ask() -> Ask:
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def asked(ask: Ask, *arguments: str | Path) -> dict:
    answer = ask(*arguments, "--json")
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_code_and_records_nested_too_deeply_are_left_out(ask: Ask, checkout: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    (checkout / "agents" / "legal_agent.py").write_text("x = " + "-" * 200_000 + "1\n")
    (checkout / "agents" / "email_agent.py").write_text(f"x = {deep}\n")
    (checkout / "data" / "memory" / "casebank.jsonl").write_text(f"{deep}\n")
    found = asked(ask, "attach", checkout, "--dry-run")
    agents = {row["agent"]: row for row in found["agents"]}
    assert agents["legal"]["files"] == ["agents/legal_agent.py"]
    assert "nested too deeply" in found["records"][0]["note"]


def test_pretty_printed_records_are_counted_as_records(ask: Ask, checkout: Path) -> None:
    cases = checkout / "data" / "memory" / "casebank.jsonl"
    lines = [line for line in cases.read_text().splitlines() if line.startswith("{")]
    cases.write_text(json.dumps([json.loads(line) for line in lines[:5]], indent=2))
    [counted] = [
        row
        for row in asked(ask, "attach", checkout, "--dry-run")["records"]
        if row["file"] == "data/memory/casebank.jsonl"
    ]
    assert (counted["usable_records"], counted["refused"], counted["note"]) == (5, 0, "")


def test_a_dry_run_lists_the_agents_and_writes_nothing(ask: Ask, checkout: Path) -> None:
    before = content_of(checkout)
    found = asked(ask, "attach", checkout, "--dry-run")
    assert content_of(checkout) == before
    agents = {row["agent"]: row for row in found["agents"]}
    assert set(agents) == {*GENESIS_AGENTS, "se-darwin", "waltzrl-conversation", "waltzrl-feedback"}
    stores = {name for name, row in agents.items() if row["writes"] == "trajectories"}
    assert stores == set(WRITTEN_BY)
    for name, agent_id in WRITTEN_BY.items():
        assert agents[name]["ids"] == [name, agent_id.format(business="*")]
    assert agents["se-darwin"]["writes"] == agents["waltzrl-feedback"]["writes"] == "cases"
    assert (agents["marketing"]["writes"], agents["marketing"]["usable_records"]) == ("", 0)
    assert agents["qa"]["files"] == ["agents/qa_agent.py"]  # it is not Python, and is found
    assert agents["waltzrl-conversation"]["files"] == []
    assert agents["waltzrl-feedback"]["usable_records"] == 20
    assert not agents["waltzrl-feedback"]["can_rank"]
    records = {row["file"]: row for row in found["records"]}
    cases = records["data/memory/casebank.jsonl"]
    assert (cases["usable_records"], cases["refused"], cases["can_rank"]) == (30, 1, False)
    assert records["data/openai_format/*.jsonl (1)"]["note"].startswith("chats without labels")
    shown = ask("attach", checkout, "--dry-run").stdout
    assert "a model can predict, but not rank" in " ".join(shown.split())
    assert "wrote nothing" in shown


def test_it_changes_no_file_of_genesis_and_takes_back_what_it_wrote(
    ask: Ask, checkout: Path
) -> None:
    before = content_of(checkout)
    written = asked(ask, "attach", checkout)["written"]
    after = content_of(checkout)
    assert before.items() <= after.items()
    new = {str(path) for path in after.keys() - before.keys()}
    assert new == {*written, str(checkout / ".genesis" / "attached.json")}
    assert str(checkout / "genesis-fp16.env") in written
    again = asked(ask, "attach", checkout)
    assert (again["written"], again["kept"]) == ([], written)
    seo = checkout / ".genesis" / "agents.d" / "seo.toml"
    seo.write_text(seo.read_text() + "# mine\n")
    answer = asked(ask, "detach", checkout)
    assert (len(answer["removed"]), answer["changed"]) == (len(written) - 1, [str(seo)])
    assert content_of(checkout).keys() - before.keys() == {seo}
    assert "nothing is attached" in str(ask("detach", checkout).exception)


def test_detach_names_the_daemon_that_still_serves(ask: Ask, checkout: Path) -> None:
    asked(ask, "attach", checkout)
    with DaemonLock(load_settings(checkout / "genesis-fp16.env", {})):
        shown = " ".join(ask("detach", checkout).stdout.split())
    assert f"a daemon still serves {checkout / '.genesis'} (" in shown
    assert f"{os.getpid()}" in shown


def test_a_checkout_is_the_same_by_each_of_its_names(
    ask: Ask, checkout: Path, tmp_path: Path
) -> None:
    written = asked(ask, "attach", checkout)["written"]
    link = tmp_path / "current"
    link.symlink_to(checkout)
    for name in (checkout / "agents" / "..", link, tmp_path / "x" / ".." / checkout.name):
        again = asked(ask, "attach", name)
        assert (again["written"], again["kept"]) == ([], written)
    assert len(asked(ask, "detach", link)["removed"]) == len(written)


def test_what_it_writes_is_read_by_daemon_and_agents(ask: Ask, checkout: Path) -> None:
    asked(ask, "attach", checkout)
    settings = load_settings(checkout / "genesis-fp16.env", {})
    assert (settings.home, settings.unknown) == (checkout / ".genesis", {})
    assert settings.enable_fp16_training
    (checkout / ".env").write_text("GENESIS_ENV=production\nENABLE_FP16_TRAINING=false\nbroken '\n")
    assert not load_settings(checkout / "genesis-fp16.env", {}).enable_fp16_training
    definitions = sorted((settings.home / "agents.d").iterdir())
    assert {path.stem for path in definitions} == {*GENESIS_AGENTS, "genesis-cases"}
    for path in definitions:
        load_agent("agents.replay_agent:ReplayAgent", path.stem, definition=path)
    assert read_definition(settings.home / "agents.d" / "spec.toml").source.agents == (
        "spec",
        "spec_*",
    )


def test_records_that_have_arrived_are_counted_for_the_agent_that_wrote_them(
    ask: Ask, checkout: Path
) -> None:
    records = Path(asked(ask, "attach", checkout)["records_folder"])
    lines = [json.dumps(trajectory_of(f"builder_agent_{number}")) for number in range(3)]
    (records / "a.jsonl").write_text("\n".join([*lines, lines[0][:40]]))
    found = asked(ask, "attach", checkout)
    [builder] = [row for row in found["agents"] if row["agent"] == "builder"]
    assert (builder["usable_records"], builder["can_rank"]) == (3, True)
    assert builder["where"] == [".genesis/records/genesis/a.jsonl"]


def test_two_checkouts_have_homes_of_their_own(ask: Ask, checkout: Path, tmp_path: Path) -> None:
    second = make_checkout(tmp_path / "second")
    asked(ask, "attach", checkout)
    asked(ask, "attach", second)
    assert (second / ".genesis" / "agents.d" / "spec.toml").exists()
    other = ["--home", checkout / ".genesis", "--settings", tmp_path / "other.env"]
    refused = ask("attach", second, *other)
    assert f"is attached to {checkout}" in str(refused.exception)


def test_a_settings_file_is_not_left_to_another_home(
    ask: Ask, checkout: Path, tmp_path: Path
) -> None:
    asked(ask, "attach", checkout)
    refused = ask("attach", checkout, "--home", tmp_path / "home")
    assert f"names the home {checkout / '.genesis'}" in str(refused.exception)
    assert not (tmp_path / "home").exists()


def test_what_failed_halfway_is_taken_back(ask: Ask, checkout: Path) -> None:
    before = content_of(checkout)
    in_the_way = checkout / ".genesis" / "agents.d"
    in_the_way.parent.mkdir()
    in_the_way.write_text("")
    assert "cannot be written" in str(ask("attach", checkout).exception)
    asked(ask, "detach", checkout)
    in_the_way.unlink()
    assert content_of(checkout) == before


@pytest.mark.parametrize("name", ["it's here", 'a "b" c', "back\\slash", "a #b", "a\\'b"])
def test_any_name_of_a_folder_is_read_back(ask: Ask, tmp_path: Path, name: str) -> None:
    checkout = make_checkout(tmp_path / name)
    asked(ask, "attach", checkout)
    settings = load_settings(checkout / "genesis-fp16.env", {})
    assert settings.home == checkout / ".genesis"
    assert settings.attached_env_file == checkout / ".env"
    asked(ask, "detach", checkout)


def test_a_group_may_write_records_and_ask(ask: Ask, checkout: Path, tmp_path: Path) -> None:
    group, records = grp.getgrgid(os.getgid()).gr_name, tmp_path / "arriving"
    asked(ask, "attach", checkout, "--group", group, "--records", records)
    settings = load_settings(checkout / "genesis-fp16.env", {})
    assert settings.predict_group == group
    assert stat.S_IMODE(records.stat().st_mode) == 0o2770
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o710
    assert records.stat().st_gid == settings.home.stat().st_gid == os.getgid()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--group", "no-such-group-here", "--records", "arriving"], "create it first"),
        (["--group", "root"], "which only its owner may enter"),
        (["--home", "agents/spec_agent.py/home"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_remedy(
    ask: Ask,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    problem: str,
) -> None:
    monkeypatch.chdir(checkout)
    answer = ask("attach", checkout, *options)
    assert problem in str(answer.exception)
    assert type(answer.exception).__name__ == "AttachError"


def test_a_folder_that_may_not_be_entered_is_named(
    ask: Ask, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file = Path.is_file

    def is_allowed(path: Path) -> bool:
        if path.parent.name == "memory":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", is_allowed)
    answer = ask("attach", checkout)
    assert "casebank.jsonl cannot be read: Permission denied" in str(answer.exception)
    assert type(answer.exception).__name__ == "AttachError"


def test_another_folder_is_refused(ask: Ask, tmp_path: Path) -> None:
    assert "is not a checkout of Genesis" in str(ask("attach", tmp_path).exception)
    assert "nothing is attached" in str(ask("detach", tmp_path).exception)
    assert list(tmp_path.iterdir()) == []
