"""The documentation as a site: it builds without a warning, and the page serves it with search."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from benchmarks.measuring.ports import free_port
from docs import generated_pages
from genesis_fp16.api.page.documentation import add_documentation
from genesis_fp16.settings import VARIABLES
from infrastructure.events.role_precision import PRESETS
from tests.e2e.page.browser import Browser, missing_program
from tests.patience import wait_until

ROOT = Path(__file__).parents[2]
SPHINX = ("-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    paths = ["-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "site")]
    built = subprocess.run(
        [sys.executable, *SPHINX, *paths], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "site"


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    app = FastAPI()
    add_documentation(app, site)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.process
def test_each_page_stands_in_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 30
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


@pytest.mark.process
def test_each_alert_links_to_an_entry_of_the_site(site: Path) -> None:
    rules = (ROOT / "deploy/prometheus/rules/genesis.rules.yml").read_text()
    links = re.findall(r"/docs/(\S+)#(\w+)'", rules)
    assert len(links) == rules.count("- alert:")
    assert [link for page, link in links if f'id="{link}"' not in (site / page).read_text()] == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("commands", ("genesis-fp16 precision set", "genesis-fp16 evolve", "--reason")),
        ("library", ("FP16Trainer", "backward_and_step", "WorldModel", "TrainingJob")),
        (
            "settings",
            (*{*VARIABLES} - {"GENESIS_ENV_FILE"}, "GENESIS_AGENTS__POLICY__SETTINGS__TASK"),
        ),
        ("metrics", ("genesis_fp16_loss_scale", "Loss scale in force; 1 outside FP16")),
        ("presets", (*PRESETS,)),
    ],
)
def test_references_come_from_the_code(site: Path, page: str, words: tuple[str, ...]) -> None:
    html = (site / "reference" / "generated" / f"{page}.html").read_text()
    text = re.sub(r"<[^>]+>", "", html)
    assert [word for word in words if word not in text] == []


@pytest.mark.process
def test_a_search_under_the_sites_own_policy_finds_a_page(
    served: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if problem := missing_program():
        pytest.skip(problem)
    browser = Browser(served, tmp_path_factory.mktemp("browser") / "profile")
    try:
        browser.driver.get(f"{served}/docs/search.html?q=overflow")
        count_results = "return document.querySelectorAll('#search-results li a').length"
        wait_until(lambda: browser.driver.execute_script(count_results) > 3, "results")
        logged = [entry["message"] for entry in browser.driver.get_log("browser")]
        assert [message for message in logged if "Content Security Policy" in message] == []
    finally:
        browser.close()


def test_settings_keep_their_defaults_and_what_changes_while_serving() -> None:
    example = "# Title\n\n# --- A part\n# First | words. Hot.\n#ONE=1\n# Second.\nTWO=\n"
    assert generated_pages.settings(example).splitlines()[-2:] == [
        "| `ONE` | `1` | yes | First \\| words. |",
        "| `TWO` |  |  | Second. |",
    ]
