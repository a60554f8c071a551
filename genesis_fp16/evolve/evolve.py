"""A user's own function, evolved until it passes the user's own tests, by an agent in a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from pydantic import JsonValue, ValidationError

from genesis_fp16.evolve.target import EvolveError, EvolveTarget, read_tests
from genesis_fp16.evolve.worker import EvolveAnswer, Evolved, EvolveRequest
from genesis_fp16.plugins.discovery import check_not_shadowed, entry_point_of
from genesis_fp16.settings.settings import Settings
from genesis_fp16.system.signals import Signals

_LOOK_SECONDS = 0.1


def evolve(
    settings: Settings,
    agent: str,
    target: EvolveTarget,
    tests: Path,
    *,
    record: bool = True,
    **options: JsonValue,
) -> Evolved:
    """Have *agent* repair a function; no file of the user's is written.

    Args:
        settings: Where the agent keeps its published world model and what it learns from.
        agent: Name of its entry point.
        target: What to repair.
        tests: A test module that imports the target's file.
        record: Whether the agent is to learn from the candidates that are run.
        options: The agent's own, such as ``max_evaluations`` and ``seed``.

    Returns:
        What the agent's ``evolve_solution`` returned.

    Raises:
        EvolveError: Something was missing, was no Python, or could not be run.
        UnknownAgentError: No such agent is installed.
        ShadowedPackageError: The child would import another library.
    """
    home = settings.home.absolute()
    why_not = _why_not_recorded(home) if record else ""
    context: dict[str, JsonValue] = {
        "code": target.code,
        "function": target.function,
        "module": target.module,
        "path": target.path,
        "test_code": read_tests(tests),
        "agent_folder": str(home / "agents" / agent),
        "record": record and not why_not,
        **options,
    }
    answer = _ask(agent, f"repair {target.function} of {target.path}", context)
    return answer.model_copy(update={"recorded": why_not}) if why_not else answer


def _why_not_recorded(home: Path) -> str:
    """Why nothing can be recorded in *home*, which is not made for that; empty if all is well."""
    try:
        owner = home.stat().st_uid
    except FileNotFoundError:
        return f"not recorded: there is no GENESIS_HOME={home} yet; genesis-fp16 run makes it"
    except OSError as error:
        return f"not recorded: GENESIS_HOME={home}: {error.strerror}"
    if owner != os.geteuid():  # its daemon could not read what this user writes
        return f"not recorded: GENESIS_HOME={home} belongs to another user (id {owner})"
    return ""


def _ask(agent: str, problem: str, context: dict[str, JsonValue]) -> Evolved:
    check_not_shadowed()
    entry_point = entry_point_of(agent)
    with tempfile.TemporaryDirectory(prefix="genesis-evolve-") as folder:
        request = EvolveRequest(
            agent=agent,
            entry_point=entry_point,
            folder=Path(folder),
            problem=problem,
            context=context,
        )
        answer = _answer_of(request, Path(folder))
    if answer.result is None:
        raise EvolveError(answer.refused, answer.exit_code)
    return answer.result


def _answer_of(request: EvolveRequest, folder: Path) -> EvolveAnswer:
    """Run the child to its end; nothing of it outlives this call."""
    asked = folder / "request.json"
    asked.write_text(request.model_dump_json())
    with asked.open() as stdin, (folder / "answer.json").open("w+") as answers:
        child = _start(answers.fileno(), stdin)
        status = _end_of(child)
        answers.seek(0)
        try:
            return EvolveAnswer.model_validate_json(answers.read())
        except ValidationError:
            raise EvolveError(
                f"{request.agent} ended with status {status} and no answer; its last words are "
                "above",
                1,
            ) from None


def _start(answers: int, stdin: TextIO) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "genesis_fp16.evolve.worker"),
                *(str(answers), str(os.getpid())),
            ],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            pass_fds=(answers,),
            start_new_session=True,
        )
    except OSError as error:
        raise EvolveError(
            f"this user cannot start the interpreter {sys.executable}: {error.strerror}. Install "
            "Python and genesis-fp16 where this user may read them, or run as another",
            os.EX_NOPERM,
        ) from None


def _end_of(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child; a signal to this process ends it and all that belongs to it."""
    try:
        with Signals() as signals:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return child.wait(_LOOK_SECONDS)
                if signals.stops:
                    raise EvolveError("interrupted: nothing was changed", os.EX_TEMPFAIL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
