"""``genesis-fp16 evolve`` on real files, with the real agent in a real child."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.evolve.evolve import evolve
from genesis_fp16.evolve.target import EvolveError, EvolveTarget, read_tests
from genesis_fp16.plugins.discovery import UnknownAgentError
from genesis_fp16.settings.reading import load_settings
from infrastructure.trajectories import ReplayBuffer

PROGRAM = Path(sys.executable).parent / "genesis-fp16"
PRICES = '''"""Prices."""


def total(amounts, threshold=100):
    amount = sum(amounts)   # before the discount
    if amount > threshold:  # at the threshold too
        amount -= 10
    return amount
'''
TESTS = """
from prices import total

def test_small():
    assert total([]) == 0
    assert total([30, 69]) == 99
    assert total([99.5]) == 99.5

def test_discount():
    assert total([100]) == 90
    assert total([60, 60]) == 110
"""

Evolve = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(folder: Path) -> Path:
    (folder / "prices.py").write_text(PRICES)
    (folder / "test_prices.py").write_text(TESTS)
    return folder


def test_a_function_is_repaired_and_the_diff_applies(folder: Path) -> None:
    result = CliRunner().invoke(
        app, ["evolve", "prices.py::total", "--tests", "test_prices.py", "--seed", "1"]
    )
    assert result.exit_code == 0, result.output
    assert "repaired: 5 of 5 checks pass" in result.stdout
    assert "chosen by suspicion: no world model is published yet" in result.stdout
    assert "revision: line 6: comparison Gt -> GtE (0.80 -> 1.00)" in result.stdout
    assert (folder / "prices.py").read_text() == PRICES
    subprocess.run(["git", "apply", "-"], input=result.stdout, text=True, check=True)
    assert (folder / "prices.py").read_text() == PRICES.replace(
        "amount > threshold:", "amount >= threshold:"
    )
    assert list(folder.glob("genesis-evolve-*")) == []


def test_what_was_not_repaired_is_not_claimed(folder: Path) -> None:
    (folder / "test_prices.py").write_text(
        "from prices import total\ndef test_a():\n    assert total([1]) == 'never'\n"
    )
    arguments = ["prices.py::total", "--tests", "test_prices.py", "--max-evaluations", "9"]
    result = CliRunner().invoke(app, ["evolve", *arguments, "--json"])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert not answer["success"]
    assert answer["pool_statistics"]["evaluations"] == 9


def test_a_file_is_read_as_it_is(folder: Path) -> None:
    (folder / "a.py").write_bytes(b"def f():\r\n    return '\xc3\xa9'\r\n")
    assert EvolveTarget.read("a.py::f").code == "def f():\r\n    return 'é'\r\n"
    (folder / "t.py").write_bytes(b"\xef\xbb\xbfimport a\n")
    assert read_tests(Path("t.py")) == "import a\n", "a byte order mark does tests no harm"


@pytest.mark.parametrize(
    ("files", "target", "message", "code"),
    [
        ({}, "nothere.py::total", "there is no file nothere.py", os.EX_NOINPUT),
        ({}, "prices.py", "write FILE::FUNCTION", os.EX_USAGE),
        ({}, "prices.py::sum", "no function 'sum' at its top level; there are total", 65),
        ({}, "prices.py::totall", r"did you mean total\?", 65),
        ({"a.py": "class A:\n def f(s): 0"}, "a.py::A.f", "A.f is a method: move what", 65),
        ({"a.py": "class A:\n def f(s): 0"}, "a.py::f", "A.f is a method: move what", 65),
        ({"a.py": "class A: 0"}, "a.py::A", "A is a class: name a function", 65),
        ({"a.py": "async def f(): 0"}, "a.py::f", "f is asynchronous", 65),
        ({"a.py": "f = lambda x: x"}, "a.py::f", "write it as `def f", 65),
        ({"a.py": "def g():\n def f(): 0"}, "a.py::f", "g.f stands inside g: evolve g", 65),
        ({"a.py": "if 1:\n def f(): 0"}, "a.py::f", "f stands inside another statement", 65),
        ({"a.py": b"\xef\xbb\xbfdef f(): 0"}, "a.py::f", "byte order mark", 65),
        ({"a.py": b"x = '\xe9'"}, "a.py::f", "save it as UTF-8", os.EX_NOINPUT),
        ({"a.py": "x = " + "-" * 100_000 + "1"}, "a.py::f", "a.py", 65),
        ({"prices.py": "def total(:"}, "prices.py::total", "prices.py:1 is not Python", 65),
        ({"a.py/b": ""}, "a.py::f", "a.py cannot be read: Is a directory", os.EX_NOINPUT),
        ({"prices.py": "\0"}, "prices.py::total", "^prices.py is not Python", 65),
        ({"my-mod.py": PRICES}, "my-mod.py::total", "rename it to my_mod.py", 65),
        ({"if.py": PRICES}, "if.py::total", "rename it to _if.py", 65),
        ({"2.py": PRICES}, "2.py::total", "rename it to _2.py", 65),
        ({"test_prices.py": "x ="}, "prices.py::total", "test_prices.py:1 is not Python", 65),
        ({"test_prices.py": None}, "prices.py::total", "no file test_prices.py", os.EX_NOINPUT),
        ({"test_prices.py": b"\xff"}, "prices.py::total", "cannot be read", os.EX_NOINPUT),
    ],
)
def test_what_is_missing_or_wrong_is_named_at_once(
    folder: Path, files: dict[str, str | bytes | None], target: str, message: str, code: int
) -> None:
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(EvolveError, match=message) as caught:
        evolve(load_settings(), "se-darwin", EvolveTarget.read(target), Path("test_prices.py"))
    assert caught.value.exit_code == code


def test_an_option_of_the_agents_that_is_out_of_range_is_named() -> None:
    found = EvolveTarget.read("prices.py::total")
    with pytest.raises(EvolveError, match=r"^timeout_seconds: .* less than or equal to 3600$"):
        evolve(load_settings(), "se-darwin", found, Path("test_prices.py"), timeout_seconds=1e308)


def test_an_agent_that_is_not_installed_is_named() -> None:
    found = EvolveTarget.read("prices.py::total")
    with pytest.raises(UnknownAgentError, match=r"no agent 'nobody' .*there are .*se-darwin"):
        evolve(load_settings(), "nobody", found, Path("test_prices.py"))


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        (
            "from prices import total\ndef test_a():\n    assert total([1]) == 1",
            "nothing to repair",
        ),
        ("import prices\ndef test_a(tmp_path): prices.total([])", "fixtures are not supported"),
    ],
)
def test_tests_that_say_nothing_of_it_are_refused(folder: Path, tests: str, said: str) -> None:
    (folder / "test_prices.py").write_text(tests)
    run = subprocess.run(
        [PROGRAM, "evolve", "prices.py::total", "--tests", "test_prices.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert said in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


def test_an_interpreter_that_this_user_may_not_start_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "python"
    closed.touch(mode=0o644)
    monkeypatch.setattr(sys, "executable", str(closed))
    found = EvolveTarget.read("prices.py::total")
    with pytest.raises(EvolveError, match=r"cannot start .*/python: Permission") as caught:
        evolve(load_settings(), "se-darwin", found, Path("test_prices.py"))
    assert caught.value.exit_code == os.EX_NOPERM


@pytest.mark.parametrize(
    ("home", "options", "said"),
    [
        (None, [], "not recorded: there is no GENESIS_HOME="),
        ("folder", ["--no-record"], ""),
        ("folder", [], "recorded: "),
        ("blocked", [], "not recorded: cannot record a transition in"),
    ],
)
def test_what_was_run_is_recorded_where_it_can_be(
    folder: Path, home: str | None, options: list[str], said: str
) -> None:
    genesis = folder / ".genesis"
    if home is not None:
        genesis.mkdir()
    if home == "blocked":
        (genesis / "agents").touch()
    arguments = ["prices.py::total", "--tests", "test_prices.py", "--json", *options]
    result = CliRunner().invoke(app, ["evolve", *arguments])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert said in answer["recorded"]
    replay = genesis / "agents" / "se-darwin" / "replay"
    recorded = list(ReplayBuffer(replay).read())
    run = sum(each["trajectories"] for each in answer["iterations"])
    assert len(recorded) == (run if said == "recorded: " else 0)
    assert genesis.exists() == (home is not None)
    for transition in recorded:
        assert transition.group == "prices.total"
        assert transition.propensity is not None
        assert "hidden_pass_rate" not in transition.info
    assert sum(transition.terminated for transition in recorded) == (said == "recorded: ")


def test_a_home_of_another_user_is_left_alone(folder: Path) -> None:
    settings = load_settings(environ={"GENESIS_HOME": "/proc/1" if os.geteuid() else str(folder)})
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    result = evolve(
        settings,
        "se-darwin",
        EvolveTarget.read("prices.py::total"),
        Path("test_prices.py"),
        max_evaluations=1,
    )
    assert "belongs to another user" in result.recorded
    assert not (folder / "agents").exists()


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
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, path: str, within: str
) -> None:
    work = folder / "work"
    for name in ("work/elsewhere/real.py", "work/prices.py", "shop/tax.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(PRICES)
    (work / "link.py").symlink_to("elsewhere/real.py")
    monkeypatch.chdir(work)
    found = EvolveTarget.read(target.format(folder=work))
    assert (found.folder / found.path).samefile(work / within / path)
    assert found.folder == (work / within if within == "../shop" else work).resolve()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing_behind(folder: Path, number: signal.Signals) -> None:
    (folder / "prices.py").write_text("def total(amounts):\n    while True:\n        pass\n")
    process = subprocess.Popen(
        [PROGRAM, "evolve", "prices.py::total", "--tests", "test_prices.py"],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder)},
        text=True,
    )
    while not list(folder.glob("genesis-evolve-*/se-darwin-*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == os.EX_TEMPFAIL
    assert "interrupted: nothing was changed" in errors
    assert list(folder.glob("genesis-evolve-*")) == []


def test_a_killed_command_leaves_no_process(folder: Path) -> None:
    (folder / "prices.py").write_text("def total(amounts):\n    while True:\n        pass\n")
    process = subprocess.Popen(
        [PROGRAM, "evolve", "prices.py::total", "--tests", "test_prices.py"],
        env={**os.environ, "TMPDIR": str(folder)},
    )
    while not list(folder.glob("genesis-evolve-*/se-darwin-*")):
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert children
    assert alive == []
