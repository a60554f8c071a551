"""Who leads one PostgreSQL database, and when a successor may begin."""

import os
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, text, update

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from genesis_fp16.store.database import database_url
from genesis_fp16.store.leadership import Leadership, place
from genesis_fp16.store.schema import leader
from tests.patience import wait_until

END_LOCKS = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"

Lead = Callable[..., Leadership]


@pytest.fixture
def engine(postgres_settings: Settings) -> Iterator[Engine]:
    """A migrated database."""
    Store.open(postgres_settings).close()
    engine = create_engine(database_url(postgres_settings), isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture
def daemon(engine: Engine) -> Iterator[Lead]:
    """Daemons of that database, each with a clock of its own."""
    made: list[Leadership] = []

    def make(clock: Callable[[], float] = time.monotonic) -> Leadership:
        made.append(Leadership(engine.url, f"daemon {len(made)}", 7.0, clock))
        return made[-1]

    yield make
    for leadership in made:
        leadership.release()


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lead(leadership: Leadership) -> None:
    wait_until(lambda: leadership.try_lock() == "", "the lock to be free")
    assert leadership.seconds_to_wait() == 0.0
    leadership.begin()


def set_row(engine: Engine, **columns: object) -> None:
    with engine.connect() as connection:
        assert connection.execute(update(leader).values(columns)).rowcount == 1


def vanish(engine: Engine, leadership: Leadership, until: Callable[..., float]) -> None:
    """Let the leader lose its connection, as by a crash."""
    with engine.connect() as connection:
        connection.execute(text(END_LOCKS))
    until(lambda: leadership._lost)


def test_a_second_one_waits_until_the_first_ends_in_order(engine: Engine, daemon: Lead) -> None:
    first, second = daemon(), daemon()
    lead(first)
    assert "daemon 0" in second.try_lock()
    first.release()
    lead(second)
    first.release()  # again, and too late
    second.check()


def test_a_leader_gives_leave_with_each_beat_and_no_more_when_its_connection_is_cut(
    engine: Engine, daemon: Lead, until
) -> None:
    leaves: list[float] = []
    first = daemon()
    first.on_beat = leaves.append
    lead(first)
    until(lambda: len(leaves) >= 2)
    assert leaves[1] - leaves[0] > 0.1, "a beat a second, or fewer on a crowded machine"
    assert leaves[-1] <= time.monotonic() + 6.0, "a second before others may begin"
    vanish(engine, first, until)
    with pytest.raises(StoreError, match=r"lost: .*; start the daemon") as lost:
        first.check()
    assert "UPDATE" not in str(lost.value), "no statement of SQL is for an operator"
    count = len(leaves)
    second = daemon()
    until(lambda: second.try_lock() == "")
    assert len(leaves) == count


def test_a_leader_whose_database_is_silent_stops_before_others_may_begin(daemon: Lead) -> None:
    clock = Clock()
    first = daemon(clock)
    lead(first)
    for _ in range(39):
        clock.now += 0.1
        first._note_suspension()  # its watch runs
    first.check()
    clock.now += 0.2
    with pytest.raises(StoreError, match=r"answered for 4\.1 s"):
        first.check()
    assert first.lease_until - clock.now > 1.0, "while its workers may still write a checkpoint"


@pytest.mark.parametrize("first_thread", ["the loop", "the watch"])
def test_a_leader_that_was_suspended_says_so_and_does_not_blame_its_database(
    daemon: Lead, first_thread: str
) -> None:
    clock = Clock()
    first = daemon(clock)
    lead(first)
    clock.now += 4.1
    if first_thread == "the watch":
        first._note_suspension()
    with pytest.raises(StoreError, match=r"not run for 4\.1 s"):
        first.check()


def test_the_workers_of_a_daemon_elsewhere_are_awaited(engine: Engine, daemon: Lead, until) -> None:
    clock = Clock()
    first, second, third = daemon(), daemon(clock), daemon(clock)
    lead(first)
    assert second.try_lock() != ""
    set_row(engine, place="elsewhere")
    clock.now += 5.0
    until(lambda: second.try_lock() != "" and second._seen_at == clock.now, "a beat to be seen")
    vanish(engine, first, until)
    until(lambda: second.try_lock() == "")
    assert 6.9 < second.seconds_to_wait() <= 7.0, "since the last beat that it has seen"
    for _ in range(2):
        clock.now += 3.0
        until(lambda: second._confirmed == clock.now, "a beat of its own")
        assert second.seconds_to_wait() > 0.0
    second.release()  # before it has led
    until(lambda: third.try_lock() == "")
    assert third.seconds_to_wait() == pytest.approx(7.0), "those workers may still run"
    for _ in range(3):
        clock.now += 3.0
        until(lambda: third._confirmed == clock.now)
    assert third.seconds_to_wait() == 0.0


@pytest.mark.parametrize(
    ("pid", "waits"), [(os.getpid(), True), (2**22 + 1, False)], ids=["alive", "dead"]
)
def test_on_the_same_machine_only_a_daemon_that_lives_is_awaited(
    engine: Engine, daemon: Lead, until, pid: int, waits: bool
) -> None:
    """The workers of one that is dead are known by their process ids, and ended."""
    first = daemon()
    lead(first)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT place FROM leader")) == place()
    set_row(engine, pid=pid)
    vanish(engine, first, until)
    second = daemon()
    until(lambda: second.try_lock() == "")
    assert (second.seconds_to_wait() > 0.0) is waits


def test_a_lock_whose_holder_is_silent_is_ended(engine: Engine, daemon: Lead, until) -> None:
    """Its connection may hang for hours somewhere between it and the server."""
    clock = Clock()
    first, second = daemon(), daemon(clock)
    lead(first)
    assert second.try_lock() != ""
    first._stopping.set()  # it beats no more, and keeps its connection
    assert first._thread is not None
    first._thread.join(timeout=60)
    assert second.try_lock() != ""
    clock.now += 6.9
    assert second.try_lock() != ""
    clock.now += 0.2
    until(lambda: second.try_lock() == "")
    assert second.seconds_to_wait() >= 0.0


def test_beats_that_change_nothing_mean_that_another_one_leads(
    engine: Engine, daemon: Lead, until
) -> None:
    first = daemon()
    lead(first)
    set_row(engine, incarnation="another")
    until(lambda: first._lost)
    with pytest.raises(StoreError, match="another daemon leads"):
        first.check()


def test_a_server_that_is_gone_is_an_error_with_a_remedy(daemon: Lead, engine: Engine) -> None:
    gone = Leadership(engine.url.set(host="127.0.0.1", port=1, query={}), "x", 7.0)
    with pytest.raises(StoreError, match="GENESIS_DATABASE_URL"):
        gone.try_lock()
