from __future__ import annotations

import pytest

from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.trajectories.record_source import SourceServerError
from infrastructure.trajectories.record_source.databases.database_source import CURSOR_FILE
from infrastructure.trajectories.record_source.databases.redis_stream import RedisStream

pytestmark = pytest.mark.process


@pytest.fixture
def home(redis_server, home_of):
    redis_server.client.flushall()
    return home_of(f'kind = "redis"\nurl = "{redis_server.url}"\nagents = ["builder_agent_*"]')


def test_each_entry_is_read_once_and_in_order(redis_server, home, make_trajectory):
    redis_server.store(*(make_trajectory(n) for n in range(450)))
    redis_server.store(make_trajectory(450, agent="spec_shop"))
    assert home.run() == [f"task {n}" for n in range(450) for _ in range(2)]
    assert home.source.report.others == {"spec_shop": 1}
    redis_server.store(make_trajectory(451))
    assert home.run() == ["task 451"] * 2
    assert home.source.report.duplicates == 0  # it went on where it had stopped
    redis_server.store(make_trajectory(451))  # Genesis stores it again
    assert home.run() == []


def test_a_spent_budget_a_crash_and_a_lost_cursor_lose_and_double_nothing(
    redis_server, home, make_trajectory
):
    redis_server.store(*(make_trajectory(n) for n in range(6)))
    assert home.run(stop_after=2) == ["task 0"] * 2
    assert home.run(stop_after=3, keep=False) == ["task 1", "task 1", "task 2"]  # killed
    assert home.run() == ["task 2", *(f"task {n}" for n in (3, 4, 5) for _ in range(2))]
    (home.agent_folder / CURSOR_FILE).write_text("{torn")
    assert home.run() == []
    assert home.source.report.duplicates == 6


def test_entries_that_redis_dropped_unread_are_counted(redis_server, home, make_trajectory):
    redis_server.store(*(make_trajectory(n) for n in range(10)))
    home.run()
    for number in range(10, 20):
        record = make_trajectory(number)
        redis_server.store(record)
    redis_server.client.xtrim("agent_trajectories", maxlen=4, approximate=False)
    assert home.run() == [f"task {n}" for n in range(16, 20) for _ in range(2)]
    assert next(iter(home.source.report.unreadable)) == "6 records"
    redis_server.store(make_trajectory(20))
    home.run()
    assert home.source.report.unreadable == {}


def test_a_damaged_entry_costs_itself_only(redis_server, home, make_trajectory):
    redis_server.client.xadd("agent_trajectories", {"data": '{"agent_id": "builder'})
    redis_server.client.xadd("agent_trajectories", {"other": "x"})
    redis_server.store(make_trajectory(1))
    assert home.run() == ["task 1"] * 2
    (problem,) = home.source.report.problems()
    assert "1 record cannot be read" in problem
    assert "the stream 'agent_trajectories' of redis://127.0.0.1" in problem


def test_a_redis_that_is_gone_is_named_and_nothing_is_lost(redis_server, home, make_trajectory):
    redis_server.store(make_trajectory(1))
    redis_server.client.wait(0, 0)
    redis_server.kill()
    try:
        with pytest.raises(SourceServerError, match=r"redis://127.*refused.*start the server"):
            home.run()
    finally:
        redis_server.start()
    assert home.run() == ["task 1"] * 2


def test_a_password_is_read_from_its_file(redis_server, home, make_trajectory):
    redis_server.store(make_trajectory(1))
    redis_server.client.config_set("requirepass", "secret")
    try:
        with pytest.raises(SourceServerError, match="authenticated"):
            home.run()
        home.text += '\npassword_file = "redis.password"'
        with pytest.raises(MisconfiguredError, match=r"redis\.password cannot be read"):
            home.run()
        (home.home / "redis.password").write_text("secret\n")
        assert home.run() == ["task 1"] * 2
    finally:
        redis_server.client.execute_command("AUTH", "secret")
        redis_server.client.config_set("requirepass", "")


@pytest.mark.parametrize("rest", [":abc", ":99999", "?socket_timeout=abc", "?nonsense=1"])
def test_a_url_with_a_wrong_port_or_option_is_named(rest):
    with pytest.raises(MisconfiguredError, match=r"source\.url redis://localhost.*correct it"):
        RedisStream(f"redis://localhost{rest}", "agent_trajectories")
