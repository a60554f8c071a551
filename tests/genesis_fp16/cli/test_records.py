"""``genesis-fp16 records delete``."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from typer.testing import Result

from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    describe_published,
    keep_version,
)
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.run_context import ROWS_FOLDER
from infrastructure.trajectories import ReplayBuffer


def keep(agent: Path, name: str, lengths: dict[str, int] | None) -> None:
    """Publish a version that was trained on *lengths* of the segments."""
    (agent / "published").mkdir(parents=True, exist_ok=True)
    (agent / "published" / "model.bin").write_text(name)
    data = DataFacts(transitions=1, size=1, sha256="ab" * 32, segments=lengths or {})
    version = ModelVersion(
        id=name,
        run_id=None if lengths is None else name,
        published_at=float(ord(name[-1])),
        replaced=None,
        reason="better",
        metrics={},
        data=None if lengths is None else data,
        files=describe_published(agent),
    )
    keep_version(agent, version, keep=9)


def test_a_group_is_removed_and_the_models_that_have_seen_it_are_named(
    ask: Callable[..., Result], ask_json: Callable[..., object], store: Store, folder: Path
) -> None:
    home = load_settings().home
    agent = home / "agents" / "se-darwin"
    lengths = []
    with closing(ReplayBuffer(agent / "replay")) as buffer:
        for group in ("customer-8", "customer-7", "customer-7"):
            lengths.append(dict(buffer.snapshot().lengths))
            buffer.append(Transition(group=group, observation={"x": 1.0}, action={}))
        lengths.append(dict(buffer.snapshot().lengths))
    for number in (1, 2, 3):
        keep(agent, f"r{number}", lengths[number])
    keep(agent, "r0", None)
    run = store.enqueue("se-darwin", first_seed=0)
    rows = home / "runs" / run.id / ROWS_FOLDER
    rows.mkdir(parents=True)
    said = ask("records", "delete", "se-darwin", "--group", "customer-7", "--reason", "left us")
    assert said.exit_code == 0, said.output
    text = said.stdout
    assert "removed 2 transitions" in text
    assert "version r3, in use: has 2 of them" in text or "version r3: has 2 of them" in text
    assert "version r2: has 1 of them" in text
    assert "version r0" in text and "may have in its training data" in text  # noqa: PT018
    assert "version r1" not in text
    assert f"run {run.id} is under way" in text
    assert "not searched: clients' spools on other machines" in text
    assert "predict servers" not in text
    assert rows.exists()
    assert [row.group for row in ReplayBuffer(agent / "replay").read()] == ["customer-8"]
    change = store.overrides.audit()[0]
    assert (change.action, change.reason) == ("records delete", "left us")
    assert "customer-7" not in str(change.details)
    again = ask_json("records", "delete", "se-darwin", "--group", "customer-7", "--reason", "sure")
    assert (again["transitions"], again["seen_by"]) == (0, [])
    wrong = ask("records", "delete", "no-such", "--group", "g", "--reason", "why")
    assert wrong.exit_code != 0


def test_decisions_go_out_as_dsjson_and_come_in_once(
    ask: Callable[..., Result], store: Store, folder: Path
) -> None:
    del store
    agent = load_settings().home / "agents" / "se-darwin"
    agent.mkdir(parents=True)
    line = (
        '{"_label_cost":-1,"_label_probability":0.8,"_label_Action":2,"EventId":"%s",'
        '"c":{"x":1,"_multi":[{"tool":"a"},{"tool":"b"}]}}'
    )
    source = folder / "in.dsjson"
    source.write_text(f"{line % 'e1'}\nnonsense\n\n{line % 'e2'}\n")
    done = ask("records", "import", "se-darwin", str(source))
    assert done.exit_code == 0, done.output
    assert "2 decisions are new, 0 were there; 1 lines are left out" in done.stdout
    assert "line 2: it is not JSON" in done.stdout
    assert (
        "0 decisions are new, 2 were" in ask("records", "import", "se-darwin", str(source)).stdout
    )
    exported = folder / "out.dsjson"
    assert "2 decisions" in ask("records", "export", "se-darwin", str(exported)).stdout
    first, second = exported.read_text().splitlines()
    assert '"EventId":"e1"' in first
    assert '"_label_probability":0.8' in second
    missing = ask("records", "import", "se-darwin", str(folder / "none"))
    assert missing.exit_code != 0
