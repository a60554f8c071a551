"""A real headless Chromium, and what a test asks of it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.patience import wait_until

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en", "--disable-extensions"),
)
DESKTOP, PHONE = (1280, 900), (360, 740)
BELOW = 8  # pixels of a picture below the last element
RETRIES = 10
SCRIPT_SECONDS = 110  # of 30 by default, below the client's own 120
_REPLACED = ("does not belong to the document", "aborted by navigation", "execution context")
_RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}"


def missing_program() -> str:
    """What is not installed, with the remedy; empty if a browser can be started."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed: apt-get install chromium chromium-driver"
    return ""


class Browser:
    """Visits the pages at *url*; its profile is in the new *folder*."""

    def __init__(self, url: str, folder: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.url = url
        folder.mkdir()
        environment = os.environ | {"TMPDIR": str(folder)}  # what it leaves when it is killed
        service = Service(shutil.which("chromedriver"), env=environment)
        self.driver = webdriver.Chrome(options, service)
        self.driver.set_script_timeout(SCRIPT_SECONDS)
        self.look()

    def close(self) -> None:
        """Kill the browser and its driver: to quit it waits for one that may no longer answer."""
        program = self.driver.service.process
        for process in psutil.Process(program.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        program.kill()
        program.wait(60)
        self.driver.service.stop()  # closes what it has open
        self.driver.command_executor.close()

    def look(self, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        """Have a window of *size*, and prefer dark or light."""
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        self._order("Emulation.setDeviceMetricsOverride", **screen, mobile=size == PHONE)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._order("Emulation.setEmulatedMedia", features=[scheme])

    @contextmanager
    def without_javascript(self) -> Iterator[None]:
        """Run no script of any page meanwhile."""
        self._order("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield
        finally:
            self._order("Emulation.setScriptExecutionDisabled", value=False)

    def open(self, path: str) -> None:
        """Load the page at *path*."""
        self.driver.get(self.url + path)

    def sign_in(self, token: str) -> None:
        """Send *token* by the form."""
        self.open("/sign-in")
        self.one("#token").send_keys(token)
        self.leave(self.one("main button").click)

    def leave(self, act: Callable[[], object]) -> None:
        """Do what loads another page, and wait until it has: a click may return before that."""
        left = self.one("html")
        act()
        wait_until(lambda: self._has_left(left), "another page")

    def _has_left(self, page: WebElement) -> bool:
        try:
            page.is_enabled()
        except StaleElementReferenceException:
            return self.run("document.readyState") == "complete"
        except WebDriverException as error:  # the same, while the page is being replaced
            if not any(phrase in str(error).lower() for phrase in _REPLACED):
                raise
        return False

    def one(self, selector: str) -> WebElement:
        """The first element of that CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """What a person reads there; again if the page replaces it at that moment."""
        for _ in range(RETRIES):
            try:
                return self.one(selector).text
            except StaleElementReferenceException:
                continue
            except WebDriverException as error:  # the same, while the element is being looked up
                if _REPLACED[0] not in str(error):
                    raise
        raise AssertionError(f"{selector} is replaced again and again")

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression in the page."""
        return self.driver.execute_script(f"return {script}")

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page."""
        if not self.run("!!window.axe"):
            self.driver.execute_script(AXE)
        report = self.driver.execute_async_script(
            f"axe.run(document, {_RULES}).then(arguments[arguments.length - 1])"
        )
        return [
            f"{violation['id']}: {node['html'][:160]}: {node['failureSummary'][:300]}"
            for violation in report["violations"]
            for node in violation["nodes"]
        ]

    def complaints(self) -> list[str]:
        """What pages have written to the console since the last call: errors, refused scripts."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def picture(self, path: Path, *, until: str = "footer") -> None:
        """Write a picture of the page as PNG, down to the first element of the selector *until*."""
        bottom = self.one(until).rect["y"] + self.one(until).rect["height"]
        width, height = self.run("innerWidth"), round(bottom) + BELOW
        screen = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._order("Emulation.setDeviceMetricsOverride", **screen, mobile=width == PHONE[0])
        self.driver.save_screenshot(str(path))

    def _order(self, command: str, **arguments: object) -> None:
        self.driver.execute_cdp_cmd(command, arguments)
