import os
import signal

import pytest

from agents.se_darwin.fork_server.given_modules import PROJECT_FOLDER
from agents.se_darwin.fork_server.own_ends import own_end, raising_ends

FILE = f"{PROJECT_FOLDER}tests/test_prices.py"
ALWAYS = "itself, with any version of the function"


def end_of(body: str) -> str:
    """How a test with that *body* ends itself; its program has the function ``solve``."""
    source = f"def test_a():\n    {body}\ndef stop(*_):\n    raise KeyboardInterrupt\n"
    names = ("os", "pytest", "signal", "sys", "unittest")
    namespace = {name: __import__(name) for name in names}
    program = "import os\ndef solve(call=None):\n    call() if call else os.abort()"
    exec(compile(program, "<candidate>", "exec"), namespace)
    exec(compile(source, FILE, "exec"), namespace)
    test = namespace["test_a"]
    assert callable(test)
    with raising_ends():
        try:
            test()
        except BaseException as error:  # as a suite is run
            return own_end(error, {FILE: source})
    return "ends"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("os._exit(0)", f"ends the process with os._exit {ALWAYS}"),
        ("os._exit(status=0)", f"ends the process with os._exit {ALWAYS}"),
        ("os.abort()", f"ends the process with os.abort {ALWAYS}"),
        (
            "os.killpg(os.getpgrp(), signal.SIGKILL)",
            f"ends the process with os.killpg {ALWAYS}",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"ends the process with os.kill {ALWAYS}"),
        (
            "signal.raise_signal(15)",
            f"ends the process with signal.raise_signal {ALWAYS}",
        ),
        ("sys.exit('done')", f"raises SystemExit {ALWAYS}"),
        ("exit()", f"raises SystemExit {ALWAYS}"),
        ("stop()", f"raises KeyboardInterrupt {ALWAYS}"),
        ("if solve(int) is None: stop()", ""),
        ("solve(int) or stop()", ""),
        ("if solve(int) == 1: return\n    stop()", ""),
        ("if solve(int) == 1: raise unittest.SkipTest('x')\n    stop()", ""),
        ("if solve(int) == 1: pytest.xfail('x')\n    stop()", ""),
        ("solve(int) or 1; stop()", ""),  # which of the two it is cannot be told
        ("assert None is solve(int) is not stop()", ""),
        ("1 < 0 < stop(); list(map(stop, [solve(int)]))", ""),
        ("list(map(stop, [solve(int)]))", ""),  # as often as there are results
        ("with pytest.raises(ValueError):\n        solve(int); stop()", ""),
        ("solve()", ""),  # the function ends the process
        ("solve(stop)", ""),  # it calls what does
        ("raise ValueError", ""),
        ("pytest.fail('no')", ""),
        ("os.kill(os.getpid(), 0)", "ends"),
        ("os.kill(os.getpid(), signal.SIGWINCH)", "ends"),
    ],
)
def test_only_what_a_test_itself_always_does_counts(body: str, expected: str) -> None:
    assert end_of(body) == expected


def test_what_ends_the_process_is_there_again() -> None:
    before = os._exit, os.kill, os.killpg, os.abort, signal.raise_signal
    with raising_ends():
        assert os._exit is not before[0]
        os.kill(os.getpid(), 0)  # of a module that is not given
    assert (os._exit, os.kill, os.killpg, os.abort, signal.raise_signal) == before
