import ast

from benchmarks.se_darwin.foreign.handwritten_bugs import handwritten_bugs


def test_visible_and_hidden_tests_share_no_assert() -> None:
    for bug in handwritten_bugs():
        visible, hidden = _asserts(bug.test_code), _asserts(bug.hidden_test_code)
        assert len(visible) == 8
        assert hidden
        assert not visible & hidden


def test_only_the_right_program_passes() -> None:
    for bug in handwritten_bugs():
        assert _passes(bug.right_code, bug.function, bug.test_code)
        assert _passes(bug.right_code, bug.function, bug.hidden_test_code)
        assert not _passes(bug.code, bug.function, bug.test_code)


def _asserts(test_code: str) -> set[str]:
    nodes = ast.walk(ast.parse(test_code))
    return {ast.unparse(node) for node in nodes if isinstance(node, ast.Assert)}


def _passes(code: str, function: str, test_code: str) -> bool:
    """Whether the asserts hold in this process; all code is this repository's own."""
    namespace: dict[str, object] = {}
    exec(code, namespace)
    for line in test_code.splitlines():
        if line.strip().startswith("assert "):
            try:
                exec(line.strip(), namespace)
            except Exception:
                return False
    return function in namespace
