"""Bugs that were fixed in a collection of algorithms, with the examples in its docstrings."""

from __future__ import annotations

import ast
from random import Random

from agents.se_darwin.edits.edit_space import definition_of
from benchmarks.se_darwin.foreign.bug import ForeignBug
from benchmarks.se_darwin.foreign.clones import Clones
from benchmarks.se_darwin.foreign.cutting import bound_names, parsed
from benchmarks.se_darwin.foreign.doctest_tests import Example, doctest_module, read_examples
from benchmarks.se_darwin.foreign.hidden_tests import comparison_tests, names_in
from benchmarks.se_darwin.foreign.histories import Fix, read_fix
from benchmarks.se_darwin.foreign.manifest import Entry
from benchmarks.se_darwin.foreign.variation import varied

REPOSITORY = "https://github.com/TheAlgorithms/Python"
_VARIED = 40


def bug_of(entry: Entry, clones: Clones) -> ForeignBug:
    """Build the bug of *entry*: the program before the fix, and the examples after it."""
    fix = read_fix(clones, entry.repository, entry.commit, entry.path, entry.function)
    return build(fix, entry.name, examples_of(fix), entry.visible, compared=entry.compared)


def examples_of(fix: Fix) -> list[Example]:
    """Examples in the docstring of the fixed function."""
    docstring = ast.get_docstring(definition_of(parsed(fix.right), fix.function)) or ""
    return read_examples(docstring, fix.function.rpartition(".")[2])


def build(
    fix: Fix,
    name: str,
    examples: list[Example],
    visible: list[int],
    *,
    separate: bool = False,
    compared: bool = True,
) -> ForeignBug:
    """Build a bug whose visible tests are the checks at the positions *visible* of *examples*.

    Args:
        fix: The fix.
        name: Name of the bug.
        examples: Examples of the fixed function.
        visible: Positions.
        separate: Whether each visible check is a test of its own.
        compared: Whether further calls are compared with those of the right program.

    Raises:
        NotCutError: The program needs a module outside the standard library.
    """
    codes = [example.code for example in examples]
    used = {
        node.id
        for code in codes
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Name)
    }
    wrong, right = fix.programs(used)
    defined = bound_names(ast.parse(right))
    imported = (used & defined) | {fix.function.partition(".")[0]}
    rest = [i for i, each in enumerate(examples) if each.is_check and i not in visible]
    hidden = doctest_module(fix.function, examples, rest, imported) if rest else ""
    setup = [each.code for each in examples if not each.is_check]
    if all(code.startswith(("import ", "from ")) for code in setup):
        calls = [each.code for each in examples if each.expected]
        further = varied(calls, _VARIED, Random(f"15/{name}"))
        names = sorted((names_in(further) & defined) | {fix.function.partition(".")[0]})
        if further and compared:
            comparison = comparison_tests(names, right, further, "\n".join(setup))
            hidden = f"{comparison}\n\n{hidden}" if hidden else comparison
    return ForeignBug(
        source="algorithms",
        name=name,
        code=wrong,
        function=fix.function,
        test_code=doctest_module(fix.function, examples, visible, imported, separate=separate),
        hidden_test_code=hidden,
        right_code=right,
    )
