"""``genesis-fp16 evolve`` on real files, with the real agent in a real child."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from agents.se_darwin.command.evolve import _run_child
from agents.se_darwin.solution.recording import MOST_RECORDED
from genesis_fp16.cli.app import app
from genesis_fp16.plugins import UnknownAgentError
from infrastructure.agent_contract.command import CommandContext, CommandError
from infrastructure.trajectories import ReplayBuffer

Popen = subprocess.Popen[str]
pytestmark = pytest.mark.usefixtures("forked")
PROGRAM = Path(sys.executable).parent / "genesis-fp16"
TARGET = ("prices.py::total", "--tests", "test_prices.py")


@pytest.fixture
def evolve() -> Callable[..., Result]:
    """Run the command in this process."""
    return lambda *options: CliRunner().invoke(app, ["evolve", *TARGET, *options])


@pytest.fixture
def endless(folder: Path) -> Iterator[Popen]:
    """The command in its own process, at a program that never ends."""
    (folder / "prices.py").write_text("def total(amounts):\n    while True:\n        pass\n")
    process = subprocess.Popen(
        [PROGRAM, "evolve", *TARGET],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        text=True,
    )
    while not list(folder.glob("genesis-evolve-*/se-darwin-*")):
        assert process.poll() is None
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait(timeout=300)
    assert process.stderr is not None
    process.stderr.close()


def test_a_function_is_repaired_and_the_diff_applies(
    folder: Path, prices: str, evolve: Callable[..., Result]
) -> None:
    result = evolve("--seed", "1")
    assert result.exit_code == 0, result.output
    assert "5 of 5 checks" in result.stdout
    assert "1 of 5 checks failed before; 1 edit; " in result.stdout
    assert "no world model" in result.stdout
    assert "revision: line 6: comparison Gt -> GtE (0.80 -> 1.00)" in result.stdout
    assert (folder / "prices.py").read_text() == prices
    subprocess.run(["git", "apply", "-"], input=result.stdout, text=True, check=True)
    assert (folder / "prices.py").read_text() == prices.replace(
        "amount > threshold:", "amount >= threshold:"
    )
    assert list(folder.glob("genesis-evolve-*")) == []


@pytest.mark.parametrize("module", ["agents.se_darwin.command.evolve", "agents.se_darwin_agent"])
def test_the_command_and_the_agent_are_imported_without_torch(module: str) -> None:
    script = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_was_not_repaired_is_not_claimed(folder: Path, evolve: Callable[..., Result]) -> None:
    (folder / "test_prices.py").write_text(
        "import os\nfrom prices import total\n"
        "def test_a():\n    assert total([1]) == 'never'\n"
        "def test_b():\n    if total([1]) != 'never':\n        os._exit(0)\n"
    )
    result = evolve("--max-evaluations", "9", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert not answer["success"]
    assert answer["pool_statistics"]["evaluations"] == 9
    assert answer["ended"] == "evaluations"
    plain = evolve("--max-evaluations", "9", "--ranker", "random").stdout
    assert "--max-evaluations" in plain
    assert "chosen by chance" in plain
    assert "ended in test_b" in plain


def test_an_interrupted_search_keeps_the_best(folder: Path) -> None:
    never = "from prices import total\ndef test_a():\n    assert total([1]) == 'never'\n"
    (folder / "test_prices.py").write_text(never + "    assert total([100]) == 90\n")
    (folder / ".genesis").mkdir()
    process = subprocess.Popen(
        [PROGRAM, "evolve", *TARGET, "--max-evaluations", "1000000", "--timeout", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    replay = folder / ".genesis" / "agents" / "se-darwin" / "replay"
    while len(list(ReplayBuffer(replay).read())) < 150:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == os.EX_TEMPFAIL
    assert "at best 1 of 2 checks pass; interrupted" in output
    assert "recorded: " in output
    assert "\n--- a/prices.py" in errors
    assert "program was not changed" in errors


def test_wrong_arguments_are_refused_before_anything_runs(
    evolve: Callable[..., Result],
) -> None:
    assert isinstance(evolve("--agent", "nobody").exception, UnknownAgentError)
    assert evolve("--timeout", "1e308").exit_code == 2
    error = evolve("--tests", "nothere.py").exception
    assert isinstance(error, CommandError)
    assert error.exit_code == os.EX_NOINPUT


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (
            "from prices import total\ndef test_a():\n    assert total([1]) == 1",
            "nothing to repair",
        ),
        ("import prices\ndef test_a(mocker): prices.total([])", "test_a needs mocker"),
    ],
)
def test_tests_that_say_nothing_of_it_are_refused(folder: Path, tests: str, said: str) -> None:
    (folder / "test_prices.py").write_text(tests)
    run = subprocess.run(
        [PROGRAM, "evolve", *TARGET],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert said in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


def test_an_interpreter_that_this_user_may_not_start_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, evolve: Callable[..., Result]
) -> None:
    closed = folder / "python"
    closed.touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(closed))
    error = evolve().exception
    assert isinstance(error, CommandError)
    assert "/python: Permission" in str(error)
    assert error.exit_code == os.EX_NOPERM


@pytest.mark.parametrize(
    ("home", "options", "said"),
    [
        (None, [], "does not exist yet"),
        ("folder", ["--no-record"], ""),
        ("folder", [], "recorded: "),
        ("blocked", [], "not recorded: cannot record a transition in"),
    ],
)
def test_what_was_run_is_recorded_where_it_can_be(
    folder: Path,
    home: str | None,
    options: list[str],
    said: str,
    evolve: Callable[..., Result],
) -> None:
    genesis = folder / ".genesis"
    if home is not None:
        genesis.mkdir()
    if home == "blocked":
        (genesis / "agents").touch()
    result = evolve("--json", *options)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert said in answer["recorded"]
    replay = genesis / "agents" / "se-darwin" / "replay"
    recorded = list(ReplayBuffer(replay).read())
    run = sum(each["trajectories"] for each in answer["iterations"])
    run += answer["certainty"]["candidates"]
    is_recorded = said == "recorded: "
    assert min(run, MOST_RECORDED) * is_recorded <= len(recorded) <= run * is_recorded
    assert genesis.exists() == (home is not None)
    for transition in recorded:
        assert transition.group == "prices.total"
        assert transition.propensity is not None
        assert "hidden_pass_rate" not in transition.info
    assert any(transition.terminated for transition in recorded) == is_recorded


def test_a_home_of_another_user_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, evolve: Callable[..., Result]
) -> None:
    monkeypatch.setenv("GENESIS_HOME", "/proc/1" if os.geteuid() else str(folder))
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    answer = json.loads(evolve("--json", "--max-evaluations", "1").stdout)
    assert "not recorded: " in answer["recorded"]
    assert "another user" in answer["recorded"]
    assert not (folder / "agents").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing_behind(
    folder: Path, endless: Popen, number: signal.Signals
) -> None:
    children = psutil.Process(endless.pid).children(recursive=True)
    endless.send_signal(number)
    _, errors = endless.communicate(timeout=300)
    assert endless.returncode == os.EX_TEMPFAIL
    assert "interrupted" in errors
    assert "recorded" not in errors  # GENESIS_HOME does not exist
    assert list(folder.glob("genesis-evolve-*")) == []
    assert children
    assert psutil.wait_procs(children, timeout=120)[1] == []


def test_an_interruption_tells_that_candidates_may_have_been_recorded(folder: Path) -> None:
    answers = folder / "answers"
    context = CommandContext(
        find_agent={}.__getitem__,
        as_json=False,
        print_json=print,
        defer_interrupts=lambda: contextlib.nullcontext(lambda: True),
    )
    reader, writer = os.pipe()  # the child waits for a request that never comes
    with answers.open("w") as channel, os.fdopen(reader) as stdin, os.fdopen(writer, "w"):
        for may_record in (True, False):
            with pytest.raises(CommandError) as caught:
                _run_child(context, channel.fileno(), stdin, may_record=may_record)
            assert caught.value.exit_code == os.EX_TEMPFAIL
            assert ("recorded" in str(caught.value)) == may_record


def test_the_help_names_the_exit_code_of_an_interruption(evolve: Callable[..., Result]) -> None:
    assert "75: interrupted" in " ".join(evolve("--help").stdout.split())


def test_a_killed_command_leaves_no_process(endless: Popen) -> None:
    children = psutil.Process(endless.pid).children(recursive=True)
    endless.kill()
    endless.wait(timeout=300)
    assert children
    assert psutil.wait_procs(children, timeout=120)[1] == []


@pytest.mark.parametrize("redirection", [">/dev/full", "--json >/dev/full", ">&-"])
def test_a_result_that_cannot_be_written_is_an_error_on_one_line(redirection: str) -> None:
    command = f"'{PROGRAM}' evolve {' '.join(TARGET)} --no-record {redirection}"
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert run.returncode == os.EX_IOERR
    assert re.fullmatch(r"genesis-fp16: .*stdout.*\n", run.stderr), run.stderr


def test_a_linked_program_has_the_name_of_the_link(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "prices.py").rename(folder / "real" / "prices_1.py")
    (folder / "prices.py").symlink_to("real/prices_1.py")
    result = CliRunner().invoke(app, ["evolve", *TARGET, "--no-record"])
    assert result.exit_code == 0, result.output
    subprocess.run(["patch", "-p1"], input=result.stdout, text=True, check=True)
    assert ">= threshold" in (folder / "real" / "prices_1.py").read_text()
    assert (folder / "prices.py").is_symlink()
