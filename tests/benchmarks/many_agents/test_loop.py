"""The benchmark of many agents, with few."""

import pytest

from benchmarks.many_agents.loop import measure
from genesis_fp16.runs.schedule import MAX_AGENTS


@pytest.mark.process
def test_it_measures_a_daemon_that_works() -> None:
    costs = measure(MAX_AGENTS + 1, idle_seconds=0.3)
    assert costs.agents == MAX_AGENTS + 1
    assert costs.scrape_bytes > 1000 * costs.agents
    assert costs.storm_rounds >= 2, "a round records no more than some"
    assert costs.longest_round_seconds > 0
    assert costs.idle_cpu_share > 0
    assert "scrape, bytes" in str(costs)
