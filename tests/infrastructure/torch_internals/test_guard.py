import pytest
import torch
from structlog.testing import capture_logs

from infrastructure.torch_internals import guard


@pytest.fixture(autouse=True)
def unavailable(monkeypatch):
    found = {}
    monkeypatch.setattr(guard, "UNAVAILABLE", found)
    return found


def documented(value: int) -> int:
    return value


def test_a_function_that_passes_its_check_is_taken(unavailable):
    assert (
        guard.checked("numel", lambda numel: numel(torch.ones(3)) == 3, documented) is torch.numel
    )
    assert unavailable == {}


def test_a_missing_function_is_replaced_and_the_reason_logged_once(unavailable):
    assert guard.checked("_not_there", lambda _: True, documented) is documented
    assert unavailable == {"_not_there": f"torch {torch.__version__} has no _not_there"}
    guard.log_unavailable.cache_clear()
    with capture_logs() as logs:
        guard.log_unavailable()
        guard.log_unavailable()
    assert [each["function"] for each in logs] == ["_not_there"]
    guard.log_unavailable.cache_clear()


@pytest.mark.parametrize(
    ("works", "problem"),
    [(lambda _: False, "wrong result"), (lambda numel: numel(1, 2, 3), "argument")],
)
def test_a_function_that_fails_its_check_is_replaced(works, problem, unavailable):
    assert guard.checked("numel", works, documented) is documented
    assert "numel of torch" in unavailable["numel"]
    assert problem in unavailable["numel"]


def test_a_part_that_is_missing_is_replaced(unavailable):
    assert guard.part(torch, "ones", None) is torch.ones
    assert guard.part(torch, "_not_there", 5) == 5
    assert list(unavailable) == ["_not_there"]
