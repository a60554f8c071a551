"""One daemon and one browser for all tests of the page: each takes seconds to start."""

from collections.abc import Callable, Iterator

import pytest

from benchmarks.measuring.ports import free_port
from tests.e2e.page.browser import Browser, missing_program
from tests.e2e.page.site import TOKEN, Site, install_agents


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, daemon_class: Callable) -> Iterator[Site]:
    """A daemon whose agents are in every state that the page shows."""
    if problem := missing_program():
        pytest.skip(problem)
    plugins = install_agents(tmp_path_factory.mktemp("agents") / "plugins")
    daemon = daemon_class(tmp_path_factory.mktemp("page") / "daemon", python_path=plugins)
    try:
        yield Site(daemon, free_port()).start()
    finally:
        daemon.clean_up()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Browser]:
    """A browser that has signed in."""
    browser = Browser(site.url, tmp_path_factory.mktemp("browser") / "profile")
    try:
        browser.sign_in(TOKEN)
        yield browser
    finally:
        browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The same, as a person begins: a light window on a desktop."""
    chromium.look()
    return chromium
