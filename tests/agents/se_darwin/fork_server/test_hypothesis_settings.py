import time
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.se_darwin.fork_server.collector import Collector
from agents.se_darwin.fork_server.fixtures import Fixtures
from agents.se_darwin.fork_server.hypothesis_settings import MOST_EXAMPLES, limit_examples


@pytest.mark.parametrize(("own", "expected"), [(500, MOST_EXAMPLES), (3, 3)])
def test_each_run_takes_the_same_few_examples(own: int, expected: int) -> None:
    seen: list[int] = []

    @settings(max_examples=own, database=None)
    @given(st.integers())
    def run(number: int) -> None:
        seen.append(number)

    module = ModuleType("tests")
    vars(module)["test_a"] = run
    collector = Collector(module, Fixtures([vars(module)]))
    [test] = collector.collect("test_a", [], has_end_check=True)
    collector.run(test)
    first = list(seen)
    seen.clear()
    collector.run(test)
    assert seen == first
    assert len(seen) == expected


def test_a_failure_is_not_made_simpler() -> None:
    seen: list[str] = []

    @settings(database=None)
    @given(st.text())
    def run(text: str) -> None:
        seen.append(text)
        assert len(text) < 4

    limit_examples(run)
    with pytest.raises(AssertionError):
        run()
    failing = [text for text in seen if len(text) >= 4]
    assert len(failing) <= 2, "found, and perhaps run once more to report it"


def test_an_example_may_take_longer_than_the_deadline() -> None:
    @settings(database=None, deadline=1)
    @given(st.just(0))
    def run(_: int) -> None:
        time.sleep(0.01)

    limit_examples(run)
    run()


def test_class_methods_are_limited_too() -> None:
    seen: list[int] = []

    class TestNumbers:
        @classmethod
        @settings(max_examples=500, database=None)  # the profile of `make quick` has fewer than 25
        @given(st.integers())
        def run(cls, number: int) -> None:
            seen.append(number)

    limit_examples(TestNumbers.run)
    TestNumbers.run()
    assert len(seen) == MOST_EXAMPLES


def test_other_tests_stay_as_they_are() -> None:
    def run() -> None:
        pass

    limit_examples(run)
    assert not vars(run)
