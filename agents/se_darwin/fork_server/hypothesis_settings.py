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
    settings = getattr(test, "_hypothesis_internal_use_settings", None)
    if hypothesis is None or settings is None:
        return
    unneeded = (hypothesis.Phase.shrink, hypothesis.Phase.explain)
    test._hypothesis_internal_use_settings = hypothesis.settings(
        settings,
        max_examples=min(settings.max_examples, MOST_EXAMPLES),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[phase for phase in settings.phases if phase not in unneeded],
        suppress_health_check={*settings.suppress_health_check, hypothesis.HealthCheck.too_slow},
    )
