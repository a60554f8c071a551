"""Types of settings that only the daemon uses: schedules, presets, addresses, folders, URLs."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import SplitResult, urlsplit

from apscheduler.triggers.cron import CronTrigger
from pydantic import AfterValidator, BeforeValidator

from genesis_fp16.system.bucket import check_bucket_url
from genesis_fp16.system.tokens import LONGEST_TOKEN, SHORTEST_TOKEN, TOKEN
from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.schedule import check_timezone
from infrastructure.events.role_precision import usable_preset
from infrastructure.options.exploration import Exploration
from infrastructure.options.setting_types import OrEmpty

DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
_IN_MEMORY = re.compile(r"sqlite(\+\w+)?:(/*(\?.*)?|.*(:memory:|mode=memory).*)")
_HOST = re.compile(
    r"[\w-]{1,63}(\.[\w-]{1,63})*|[0-9a-f:.]{2,45}(%[\w.-]+)?", re.ASCII | re.IGNORECASE
)
_ANY_DAY = datetime(2001, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1024)  # agents share schedules, and each reload checks all of them
def _check_schedule(text: str) -> str:
    if (cron := Schedule.parse(text).cron) is not None:
        trigger = CronTrigger.from_crontab(cron, timezone=UTC)
        if trigger.get_next_fire_time(None, _ANY_DAY) is None:
            raise ValueError("it never fires: no date matches")
    return text


def _check_timezone(name: str) -> str:
    check_timezone(name)
    return name


def _check_url(text: str) -> str:
    from sqlalchemy.engine import make_url  # here: a tenth of a second that most commands save
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ValueError("SQLAlchemy cannot parse this URL") from error
    if url.drivername not in DRIVERS:
        raise ValueError(f"it must begin with one of {', '.join(DRIVERS)} and ://")
    if "@" in (url.host or ""):  # the rest of a password, which messages would show as the host
        raise ValueError("it has more than one @: write one within the password as %40")
    if _IN_MEMORY.fullmatch(text):
        raise ValueError("a database in memory is neither shared nor kept; name a file")
    return text


def _check_host(text: str) -> str:
    if len(text) > 253 or not _HOST.fullmatch(text):
        raise ValueError("it is not a host name or an IP address")
    return text


def _check_hosts(text: str) -> str:
    for name in filter(None, map(str.strip, text.split(","))):
        _check_host(name)
    return text


def _check_token(text: str) -> str:
    if not TOKEN.fullmatch(text):
        raise ValueError(
            f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} letters, digits or -._~+/=; "
            "python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )
    return text


def _http_url(text: str) -> SplitResult | None:
    """The parts of a URL of http or https with a host; None if it is none."""
    try:
        url = urlsplit(text)
        sound = url.scheme in ("http", "https") and url.hostname and (url.port or 1)
    except ValueError:
        return None
    return url if sound else None


def _check_ray_address(text: str) -> str:
    if (url := _http_url(text)) is None:
        raise ValueError("it is not the URL of a dashboard, for example http://head:8265")
    if url.username is not None or url.query or url.fragment:
        raise ValueError("it must end after its path and name no user; the token is in a file")
    return text


def _check_notice_url(text: str) -> str:
    url = _http_url(text)
    if url is None or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("it is not a URL with a host, for example http://169.254.169.254/notice")
    if url.username is not None:
        raise ValueError("it must name no user: a metadata service asks for none")
    return text


def _check_preset(name: str) -> str:
    return usable_preset(name).name


def _check_exploration(text: str) -> str:
    Exploration.parse(text)
    return text


def _check_options(text: str) -> str:
    try:
        shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not words of a command line: {error}") from error
    return text


def _expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path.parts[0]} names an unknown user; write the full path") from error


def _empty_to_default_home(value: object) -> object:
    return ".genesis" if value == "" else value


Options: TypeAlias = Annotated[str, AfterValidator(_check_options)]
ExplorationText: TypeAlias = Annotated[str, AfterValidator(_check_exploration)]
Host: TypeAlias = Annotated[str, AfterValidator(_check_host)]
HostNames: TypeAlias = Annotated[str, AfterValidator(_check_hosts)]
ApiToken: TypeAlias = OrEmpty[Annotated[str, AfterValidator(_check_token)]]
ScheduleText: TypeAlias = OrEmpty[Annotated[str, AfterValidator(_check_schedule)]]
TimeZone: TypeAlias = Annotated[str, AfterValidator(_check_timezone)]
PresetName: TypeAlias = OrEmpty[Annotated[str, AfterValidator(_check_preset)]]
HomeFolder: TypeAlias = Annotated[
    Path, BeforeValidator(_empty_to_default_home), AfterValidator(_expand_home)
]
DatabaseUrl: TypeAlias = OrEmpty[Annotated[str, AfterValidator(_check_url)]]
RayAddress: TypeAlias = Annotated[str, AfterValidator(_check_ray_address)]
NoticeUrl: TypeAlias = OrEmpty[Annotated[str, AfterValidator(_check_notice_url)]]
SharedUrl: TypeAlias = OrEmpty[Annotated[str, AfterValidator(check_bucket_url)]]
TokenFile: TypeAlias = OrEmpty[Annotated[Path, AfterValidator(_expand_home)]]
