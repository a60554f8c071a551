"""The store as commands open it: failures come with a remedy, a lost database is not replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import typer

from genesis_fp16.cli.arguments import check_agent_name, check_reason
from genesis_fp16.cli.settings import load_location
from genesis_fp16.settings import Settings

if TYPE_CHECKING:
    from genesis_fp16.store import Store


ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", help="Why; kept in the audit trail.")
]


@contextmanager
def open_existing_store(settings: Settings) -> Iterator[Store | None]:
    """Open the store; None where no daemon has created one yet.

    Raises:
        StoreError: The database is missing though a daemon serves or runs were recorded.
    """
    if not _database_exists(settings):
        yield None
        return
    with open_store(settings) as store:
        yield store


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    """Open the store and create it where there is none.

    Raises:
        StoreError: It cannot be used, or is missing as for `open_existing_store`; with a remedy.
    """
    from genesis_fp16.daemon.log import keep_stdout_clear
    from genesis_fp16.store import Store
    from genesis_fp16.store.database import explain_store_errors
    from genesis_fp16.system.permissions import private_umask

    keep_stdout_clear()
    _database_exists(settings)
    with (
        private_umask(settings.home.absolute()),
        explain_store_errors(settings),
        closing(Store.open(settings)) as store,
    ):
        yield store


class Audit(TypedDict):
    """Who changes something, and why."""

    actor: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentChange:
    """A change of an agent's that the audit trail tells: *audit* has the actor and the reason."""

    settings: Settings
    store: Store
    agent: str
    audit: Audit


@contextmanager
def changing(agent: str, reason: str) -> Iterator[AgentChange]:
    """Open the store for a change of *agent* by the caller.

    Raises:
        BadParameter: There is no *reason*.
        UnknownNameError: There is no such agent; the message suggests a name.
        StoreError: As for `open_store`.
    """
    from genesis_fp16.cli.actor import actor

    settings, why = load_location(), check_reason(reason)
    with open_store(settings) as store:
        name = check_agent_name(agent, store) or agent
        audit = Audit(actor=actor(), reason=why)
        yield AgentChange(settings=settings, store=store, agent=name, audit=audit)


def _database_exists(settings: Settings) -> bool:
    """Whether there is a database; refuses to go on where one should be and is not."""
    from genesis_fp16.store import StoreError
    from genesis_fp16.store.daemon_status import STARTING, find_daemon
    from genesis_fp16.store.database import check_not_lost, database_exists, database_url
    from genesis_fp16.store.errors import display_name

    if database_exists(settings):
        return True
    daemon = find_daemon(settings.home.absolute())
    if daemon is not None and daemon.trouble != STARTING:
        raise StoreError(
            f"database {display_name(database_url(settings))} is gone, though a daemon ({daemon}) "
            "serves it and would not read a new one; move it back, or restart the daemon"
        )
    check_not_lost(settings)
    return False
