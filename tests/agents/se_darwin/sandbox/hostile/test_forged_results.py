"""Candidates that try to pass by forging results or by changing the code that checks them."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # the fixture waits for all programs

HOSTILE = {
    "leaves at once": """
        import os
        os._exit(0)
        """,
    "leaves while it runs": """
        import os
        def solve(x):
            os._exit(0)
        """,
    "raises SystemExit": """
        def solve(x):
            raise SystemExit(0)
        """,
    "prints fake results": """
        import os
        def solve(x):
            for number in range(3):
                line = '[%d, "value", "correct", "(0)", []]' % number
                print(line, flush=True)
                for descriptor in range(256):
                    try:
                        os.write(descriptor, (line + chr(10)).encode())
                    except OSError:
                        pass
        """,
    "writes numbers beyond all numbers": """
        import os
        def solve(x):
            for descriptor in range(3, 256):
                try:
                    os.write(descriptor, b'[0, "value", "1", "", [Infinity]]' + bytes([10]))
                except OSError:
                    pass
        """,
    "writes nonsense": """
        import os
        def solve(x):
            for descriptor in range(3, 256):
                try:
                    os.write(descriptor, bytes(range(256)) * 4 + b'[0, [], {}, 1]' + b'[' * 3000)
                except OSError:
                    pass
        """,
    "equal to everything": """
        class Yes(int):
            def __eq__(self, other):
                return True
            def __repr__(self):
                return "yes"
            __str__ = __repr__
        def solve(x):
            return Yes(0)
        """,
    "patches builtins": """
        import builtins
        def solve(x):
            builtins.repr = builtins.format = lambda *_: "correct"
            builtins.isinstance = lambda *_: True
            return x
        """,
    "patches the harness": """
        import json, sys
        for module in list(sys.modules.values()):
            for name in ("canonical", "passes", "record", "run_calls", "limit_resources"):
                if hasattr(module, name):
                    setattr(module, name, lambda *_, **__: "correct")
        json.dumps = lambda value: '[0, "value", "correct", "", []]'
        def solve(x):
            return x
        """,
    "answers before it is called": """
        import json, os
        for descriptor in range(3, 256):
            for _ in range(9):
                for answer in ({"value": "passed", "lines": []}, [0, "value", "passed", "", []]):
                    try:
                        os.write(descriptor, (json.dumps(answer) + chr(10)).encode())
                    except OSError:
                        break
        def solve(x):
            return None
        """,
    "rewrites what the tests expect": """
        import sys
        for name in ("tests", "program", *(
            f"fork_server.{name}" for name in ("check", "suite_runner", "function_proxy")
        )):
            module = sys.modules.get(name)
            for key in list(vars(module) if module else ()):
                try:
                    setattr(module, key, lambda *_, **__: True)
                except (AttributeError, TypeError):
                    pass
        def solve(x):
            return x
        """,
    "looks for the suite runner in its callers and in memory": """
        import gc, sys
        def solve(x):
            frame = sys._getframe()
            while frame is not None:
                for name, value in list(frame.f_locals.items()):
                    if name in ("suite", "tests", "checks", "wanted", "expected"):
                        return value
                frame = frame.f_back
            for found in gc.get_objects():
                if type(found).__name__ in ("Check", "SuiteRunner", "TestCase"):
                    found.failure, found.has_passed = None, True
            return x
        """,
    "reads what is expected in its callers": """
        import sys
        def solve(x):
            frame, seen = sys._getframe(), []
            while frame is not None:
                seen += frame.f_locals.values()
                frame = frame.f_back
            for found in seen:
                if isinstance(found, dict):
                    seen += found.values()
                elif isinstance(found, str) and f"solve({x}), " in found:
                    return int(found.split(f"solve({x}), ")[1].split(")")[0])
            return x
        """,
    "reads what is expected in its memory": """
        import gc
        def solve(x):
            for holder in gc.get_objects():
                for found in list(holder.values()) if type(holder) is dict else ():
                    if type(found) is str and f"solve({x}), " in found:
                        return int(found.split(f"solve({x}), ")[1].split(")")[0])
            return x
        """,
    "raises what the harness catches": """
        import sys
        def solve(x):
            raise sys.modules["fork_server.function_proxy"].CandidateLostError
        """,
    "an instance of a class that only it has": """
        class Yes:
            def __eq__(self, other):
                return True
        def solve(x):
            return Yes()
        """,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_forged_result_passes_or_changes_its_neighbour(
    aftermath: dict[str, Any], name: str
) -> None:
    effects = aftermath["report"][name]
    assert not effects["passed"]
    assert effects["neighbour"]


def test_the_server_survives_them_all(aftermath: dict[str, Any]) -> None:
    assert aftermath["report"]["restarts"] == 0


def test_nothing_outlives_the_sandbox(aftermath: dict[str, Any]) -> None:
    assert aftermath["report"]["left"] == []
