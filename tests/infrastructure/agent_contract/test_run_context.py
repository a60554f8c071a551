from __future__ import annotations

import pytest

from infrastructure.agent_contract.run_context import Budget


@pytest.mark.parametrize(("seconds", "transitions"), [(0.0, 1), (1.0, 0)])
def test_an_empty_budget_is_refused(seconds, transitions):
    with pytest.raises(ValueError, match="above zero"):
        Budget(seconds=seconds, transitions=transitions)
