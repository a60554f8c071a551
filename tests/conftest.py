"""What holds for every test: interrupts arrive, and where nothing may lack, a skip has failed."""

import signal
from collections.abc import Generator

import pytest
from _pytest.reports import CollectReport, TestReport

# In the reason of a skip that no installation could spare.
ALLOWED = ("CUDA", "Genesis' own records", "do not go together")


def pytest_configure() -> None:
    """A shell starts what is in the background deaf to interrupts, and so would be all children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help=f"a skip fails, unless its reason names one of: {', '.join(ALLOWED)}",
    )


def _judge(report: CollectReport | TestReport, config: pytest.Config) -> None:
    if not (config.getoption("fail_on_skip") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(each in reason for each in ALLOWED):
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}: --fail-on-skip takes that for a failure; install what it lacks"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, TestReport, TestReport]:
    report = yield
    _judge(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, CollectReport, CollectReport]:
    report = yield
    _judge(report, collector.config)
    return report
