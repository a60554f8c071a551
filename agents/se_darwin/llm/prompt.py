"""The prompt of a request: the program, what it fails, and what was tried."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.llm.masking import Masking
from infrastructure.agent_contract.proposer import FailingCheck, ProposalRequest, TriedProgram

SYSTEM = (
    "You repair one function of a Python module. Answer with one Python code block that contains "
    "the whole corrected function and nothing else: keep its name and parameters, import what you "
    "need inside it, do not change other code, do not write tests, do not explain."
)
MOST_CHARACTERS = 16_000  # of the module; of a longer one the function and the imports are sent
_MOST_CHECKS = 8
_MOST_TRIED = 3
_LONGEST = 400  # characters of a value


def write_prompt(request: ProposalRequest, masking: Masking) -> str:
    """Return the prompt, with secrets masked."""
    return masking.mask("\n\n".join(_parts(request)))


def _parts(request: ProposalRequest) -> Iterator[str]:
    if request.description:
        yield f"Problem: {_cut(request.description)}"
    yield f"```python\n{_program(request).strip()}\n```"
    failed = len(request.failing)
    yield (
        f"Repair the function {request.function}. It fails {failed} of {request.checks} checks:\n"
        f"{_checks(request.failing[:_MOST_CHECKS])}"
    )
    if request.suspicious:
        lines = request.program.splitlines()
        shown = (
            f"- {lines[each.line - 1].strip()}  ({each.suspicion:.2f})"
            for each in request.suspicious
            if 0 < each.line <= len(lines)
        )
        yield "Lines that the failing checks run, the most suspicious first:\n" + "\n".join(shown)
    if request.best is not None:
        yield f"The best version so far:\n{_tried(request.best, request.checks)}"
    tried = [program for program in request.tried if program != request.best]
    if tried:
        shown = (_tried(program, request.checks) for program in tried[-_MOST_TRIED:])
        yield "Your former answers were wrong:\n" + "\n\n".join(shown)


def _program(request: ProposalRequest) -> str:
    if len(request.program) <= MOST_CHARACTERS:
        return request.program
    tree = ast.parse(request.program)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept: ast.stmt = definition_of(tree, request.function)
    for owner in reversed(request.function.split(".")[:-1]):
        kept = ast.ClassDef(owner, bases=[], keywords=[], body=[kept], decorator_list=[])
    return "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in (*imports, kept))


def _tried(program: TriedProgram, checks: int) -> str:
    failing = _checks(program.failing)
    return f"```python\n{program.function}\n```\nIt passes {program.passed} of {checks} checks" + (
        f" and fails\n{failing}" if failing else ""
    )


def _checks(checks: Iterable[FailingCheck]) -> str:
    return "\n".join(f"- {_check(check)}" for check in checks)


def _check(check: FailingCheck) -> str:
    if not check.got:
        return f"{_cut(check.name)} does not end"
    expected = f", expected {_cut(check.expected)}" if check.expected else ""
    return f"{_cut(check.name)}: got {_cut(check.got)}{expected}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
