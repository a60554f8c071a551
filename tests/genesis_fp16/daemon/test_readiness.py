"""The answer of ``/readyz``."""

from genesis_fp16.daemon.readiness import Readiness


def test_a_problem_is_the_answer() -> None:
    readiness = Readiness()
    assert readiness() == (False, "starting")
    readiness.problem = ""
    assert readiness() == (True, "serving")
