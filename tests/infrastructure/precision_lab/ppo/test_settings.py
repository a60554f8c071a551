import pytest

from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo.settings import CellSettings


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"updates": 0}, "updates .* got 0"),
        ({"learning_rate": 0.0}, "learning_rate .* 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds .* got inf"),
        ({"completions": 1, "minibatches": 2}, "1 completions"),
        ({"demonstration_errors": 1.0}, "demonstration_errors must be"),
    ],
)
def test_settings_out_of_range_are_named(changed: dict[str, float], named: str) -> None:
    with pytest.raises(LabError, match=named):
        CellSettings(**changed)  # type: ignore[arg-type]


def test_a_quick_cell_is_smaller() -> None:
    settings = CellSettings(learning_rate=0.5)
    assert settings.quick().updates < settings.updates
    assert settings.quick().learning_rate == 0.5
    assert CellSettings(**settings.as_dict()) == settings
