"""A user's own function, evolved until it passes the user's own tests, by an agent in a child."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue, ValidationError

from genesis_fp16.errors import GenesisError
from genesis_fp16.evolve_worker import EvolveAnswer, Evolved, EvolveRequest
from genesis_fp16.plugins import agent_entry_points, check_not_shadowed
from genesis_fp16.settings import Settings
from genesis_fp16.signals import Signals

_LOOK_SECONDS = 0.1


class EvolveError(GenesisError, RuntimeError):
    """The function could not be evolved; the message says why and what to do."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def evolve(
    settings: Settings,
    agent: str,
    target: str,
    tests: Path,
    **options: JsonValue,
) -> Evolved:
    """Have *agent* repair a function; nothing is written.

    Args:
        settings: Where the agent keeps its published world model.
        agent: Name of its entry point.
        target: ``FILE::FUNCTION``.
        tests: A test module that imports FILE.
        options: The agent's own, such as ``max_evaluations`` and ``seed``.

    Returns:
        What the agent's ``evolve_solution`` returned.

    Raises:
        EvolveError: Something was missing, was no Python, or could not be run.
        ShadowedPackageError: The child would import another library.
    """
    file, _, function = target.partition("::")
    if not file or not function:
        raise EvolveError(
            f"{target!r} names no function: write FILE::FUNCTION, such as shop/prices.py::discount",
            os.EX_USAGE,
        )
    program = Path(file)
    code = _read(program, "the program")
    _check_function(code, program, function)
    test_code = _read(tests, "the tests")
    _parse(test_code, tests)
    context: dict[str, JsonValue] = {
        "code": code,
        "function": function,
        "module": program.stem,
        "path": file if not program.is_absolute() else program.name,
        "test_code": test_code,
        "agent_folder": str(settings.home.absolute() / "agents" / agent),
        **options,
    }
    return _ask(agent, f"repair {function} of {program.name}", context)


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EvolveError(f"{what}: there is no file {path}", os.EX_NOINPUT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise EvolveError(f"{what}: {path} cannot be read: {error}", os.EX_NOINPUT) from None


def _parse(code: str, path: Path) -> ast.Module:
    try:
        return ast.parse(code)
    except SyntaxError as error:
        message = f"{path}:{error.lineno} is not Python: {error.msg}"
    except ValueError as error:  # such as a null byte
        message = f"{path} is not Python: {error}"
    raise EvolveError(message, os.EX_DATAERR)


def _check_function(code: str, program: Path, function: str) -> None:
    tree = _parse(code, program)
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function not in functions:
        there = ", ".join(functions) or "none"
        raise EvolveError(
            f"{program} defines no function {function!r} at its top level; there are {there}",
            os.EX_DATAERR,
        )


def _ask(agent: str, problem: str, context: dict[str, JsonValue]) -> Evolved:
    check_not_shadowed()
    entry_points = agent_entry_points()
    if agent not in entry_points:
        installed = ", ".join(sorted(entry_points)) or "none"
        raise EvolveError(f"no agent {agent!r} is installed; there are {installed}", os.EX_CONFIG)
    with tempfile.TemporaryDirectory(prefix="genesis-evolve-") as folder:
        request = EvolveRequest(
            agent=agent,
            entry_point=entry_points[agent],
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
        child = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "genesis_fp16.evolve_worker"),
                *(str(answers.fileno()), str(os.getpid())),
            ],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            pass_fds=(answers.fileno(),),
            start_new_session=True,
        )
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
