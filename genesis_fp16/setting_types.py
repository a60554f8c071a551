"""Types of single settings: what each accepts, and what an empty text means."""

from __future__ import annotations

import re
from datetime import UTC
from pathlib import Path
from typing import Annotated, TypeAlias

from apscheduler.triggers.cron import CronTrigger
from pydantic import AfterValidator, BeforeValidator, Field

from infrastructure.agent_contract import Schedule

_IN_MEMORY = re.compile(r"sqlite(\+\w+)?:(/*(\?.*)?|.*(:memory:|mode=memory).*)")


def _parse_schedule(text: str) -> str:
    if (cron := Schedule.parse(text).cron) is not None:
        CronTrigger.from_crontab(cron, timezone=UTC)
    return text


def _refuse_memory(url: str) -> str:
    if _IN_MEMORY.fullmatch(url):
        raise ValueError("a database in memory is not shared and forgets all: name a file")
    return url


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def _empty_is_default_home(value: object) -> object:
    return ".genesis" if value == "" else value


EMPTY_IS_NONE = BeforeValidator(_empty_is_none)
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=366 * 86400.0, allow_inf_nan=False)]
ScheduleText: TypeAlias = Annotated[
    Annotated[str, AfterValidator(_parse_schedule)] | None, EMPTY_IS_NONE
]
HomeFolder: TypeAlias = Annotated[
    Path, BeforeValidator(_empty_is_default_home), AfterValidator(Path.expanduser)
]
_Url: TypeAlias = Annotated[
    str, Field(pattern=r"^(sqlite|postgresql)(\+\w+)?://"), AfterValidator(_refuse_memory)
]
DatabaseUrl: TypeAlias = Annotated[_Url | None, EMPTY_IS_NONE]
