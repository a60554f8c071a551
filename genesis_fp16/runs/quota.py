"""Quotas: how many seconds an agent's runs may train on one day."""

from __future__ import annotations

import math
from collections.abc import Collection

from genesis_fp16.domain.local_time import day_around, zone_named
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

READ_SECONDS = 1.0


def used_up(settings: Settings, store: Store, agents: Collection[str]) -> dict[str, float]:
    """Those of *agents* whose quota of today is used up, to the end of the day in Unix seconds."""
    quotas = {
        agent: quota
        for agent in agents
        if (quota := settings.for_agent(agent).seconds_per_day) is not None
    }
    if not quotas:
        return {}
    begin, end = day_around(store.now(), zone_named(settings.timezone))
    trained = store.times.trained_since(begin, quotas)
    return {agent: end for agent, quota in quotas.items() if trained.get(agent, 0.0) >= quota}


class DailyQuotas:
    """What `used_up` says, read again once a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._used_up: dict[str, float] = {}
        self._read_at = -math.inf

    def used_up(self, settings: Settings, agents: Collection[str], now: float) -> dict[str, float]:
        """As the function of that name; *now* is in monotonic seconds."""
        if now >= self._read_at + READ_SECONDS:
            self._used_up, self._read_at = used_up(settings, self._store, agents), now
        return self._used_up
