"""Settings of hypothesis with which tests give each candidate the same few examples."""

from __future__ import annotations

import sys
from typing import Any

MOST_EXAMPLES = 25


def limit_examples(test: Any) -> None:  # noqa: ANN401 - a function with attributes of hypothesis
    """Let *test*, if it is one of hypothesis, take the same few examples in each run.

    What it sets itself is kept, but for more examples than `MOST_EXAMPLES`, deadlines, the database
    of examples and the search for simpler ones after a failure.
    """
    hypothesis: Any = sys.modules.get("hypothesis")
    test = getattr(test, "__func__", test)  # of a class method; nothing can be set on that itself
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if hypothesis is None or own is None:
        return
    unneeded = (hypothesis.Phase.shrink, hypothesis.Phase.explain)
    test._hypothesis_internal_use_settings = hypothesis.settings(
        own,
        max_examples=min(own.max_examples, MOST_EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[phase for phase in own.phases if phase not in unneeded],
        suppress_health_check={*own.suppress_health_check, hypothesis.HealthCheck.too_slow},
    )
