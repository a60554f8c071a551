"""The page as a person uses it: a real browser, a real daemon, real runs."""

import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from tests.e2e.page.browser import PHONE, Browser
from tests.e2e.page.site import TOKEN, Site
from tests.patience import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.process]

ATTACK = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def _paths(site: Site) -> list[str]:
    runs = [site.newest_run(agent) for agent in ("quick", "hostile")]
    return [
        *("/", "/runs", "/audit", "/reports", "/agents/stormy", "/agents/stormy/guard"),
        *(f"/runs/{run}" for run in runs),
        *("/timeline", f"/compare?first={runs[0]}&second={runs[1]}"),
        "/runs/20260101T000000-00000000",  # not there
    ]


def _cookie(browser: Browser) -> dict[str, str]:
    session = browser.driver.get_cookie("genesis_session")
    return {"Cookie": f"genesis_session={session['value']}"}


def test_signing_in_needs_the_token(site: Site, browser: Browser) -> None:
    session = browser.driver.get_cookie("genesis_session")
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    browser.driver.delete_all_cookies()
    browser.open("/agents/quick")
    assert browser.driver.current_url == site.url + "/sign-in"
    assert browser.violations() == []
    browser.sign_in("a-wrong-token-0123456789")
    assert "The token is wrong." in browser.text()
    assert browser.violations() == []
    browser.sign_in(TOKEN)
    assert browser.driver.current_url == site.url + "/"
    assert "quick" in browser.text("table")


def test_every_page_is_accessible_in_dark_and_light_and_fits_a_phone(
    site: Site, browser: Browser
) -> None:
    wrong = []
    for path in _paths(site):
        browser.look()
        browser.open(path)
        wrong += [f"{path}: {violation}" for violation in browser.violations()]
        browser.look(size=PHONE, dark=True)
        wrong += [f"{path}, dark phone: {violation}" for violation in browser.violations()]
        if (width := browser.run("document.documentElement.scrollWidth")) > PHONE[0]:
            wrong.append(f"{path}: {width} pixels wide on a phone of {PHONE[0]}")
    assert wrong == []


def test_the_agents_tell_what_decides_their_precision_and_what_is_wrong(browser: Browser) -> None:
    browser.open("/")
    rows = {
        row.find_element(By.CSS_SELECTOR, "th").text: row.text
        for row in browser.driver.find_elements(By.CSS_SELECTOR, "tbody tr")
    }
    assert {"quick", "stormy", "hostile", "broken"} <= rows.keys()
    assert "FP16" in rows["quick"]
    assert "running" in rows["quick"]
    assert "FP32" in rows["stormy"]
    assert "guard: tripped" in rows["stormy"]
    assert "failed" in rows["hostile"]
    assert "quarantined" in rows["broken"]
    assert "3 need attention" in browser.text("h1 + p")
    browser.leave(browser.one("h1 + p a").click)
    assert "quick" not in browser.text("tbody")


def test_what_does_not_train_shows_no_precision_and_what_is_off_is_folded(browser: Browser) -> None:
    browser.open("/")
    rows = {
        row.find_element(By.CSS_SELECTOR, "th").text: row
        for row in browser.driver.find_elements(By.CSS_SELECTOR, "tbody tr")
    }
    assert not rows["broken"].find_elements(By.CSS_SELECTOR, ".badge")
    assert rows["stormy"].find_elements(By.CSS_SELECTOR, ".badge")
    assert "policy" not in rows
    folded = browser.one("details.fold")
    assert "disabled" in folded.text
    assert "GENESIS_AGENTS__POLICY__ENABLED=true" not in folded.text
    folded.find_element(By.CSS_SELECTOR, "summary").click()
    assert "GENESIS_AGENTS__POLICY__ENABLED=true" in folded.text
    browser.open("/?query=poli")
    assert "1 disabled" in browser.text("main")


def test_the_time_line_shows_runs_and_rollbacks_of_all_agents(site: Site, browser: Browser) -> None:
    browser.open("/timeline?hours=1")
    drawn = {
        row.find_element(By.CSS_SELECTOR, "th").text: row
        for row in browser.driver.find_elements(By.CSS_SELECTOR, ".timeline tbody tr")
    }
    assert {"quick", "stormy", "hostile"} <= drawn.keys()
    assert "1 rollback to FP32" in drawn["stormy"].text
    assert drawn["stormy"].find_elements(By.CSS_SELECTOR, "path.mark")
    assert drawn["hostile"].find_elements(By.CSS_SELECTOR, "rect.bad")
    assert drawn["quick"].find_elements(By.CSS_SELECTOR, "rect.busy")
    browser.open("/timeline?query=storm")
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, ".timeline tbody tr")) == 1


def test_two_runs_are_compared(site: Site, browser: Browser) -> None:
    first, second = site.newest_run("quick"), site.newest_run("stormy")
    browser.complaints()  # of pages before
    browser.open(f"/compare?first={first}&second={second}")
    wait_until(lambda: browser.run("document.getElementById('compare').dataset.points"), "curves")
    assert "loss" in browser.text("#compare-status")
    different = browser.text("#settings ~ .scroll")
    assert "settings.epochs" in different
    assert "1000000" in different
    assert "attempt_folder" not in browser.text()
    assert "FP32" in browser.text("#results ~ .scroll")
    assert browser.complaints() == []


def test_the_guards_evidence_has_its_numbers(site: Site, browser: Browser) -> None:
    browser.open("/agents/stormy/guard")
    text = browser.text()
    [trip] = site.api("GET", "/api/agents/stormy/guard")["decisions"]
    assert trip["trigger"] in ("overflow_storm", "scale_floor"), "whichever window ended first"
    assert trip["trigger"].replace("_", " ") in text
    assert re.search(r"^2\^-?\d+ \d+ ", text, re.MULTILINE), "loss scales of the windows"
    assert trip["evidence"] in text
    assert trip["reason"] in text


def test_the_curve_grows_and_marks_overflows(site: Site, browser: Browser) -> None:
    browser.open(f"/runs/{site.newest_run('quick')}")

    def known(name: str) -> int:
        return int(browser.run(f"document.getElementById('curves').dataset.{name} || 0"))

    def marks() -> int:
        """Pixels in the colour of the marks at the foot of the loss scale's plot."""
        return browser.run("""(() => {
            const canvas = document.querySelector("#scale-chart canvas");
            if (!canvas) return 0;
            const probe = document.createElement("canvas").getContext("2d");
            probe.fillStyle = getComputedStyle(document.documentElement)
                .getPropertyValue("--overflow");
            probe.fillRect(0, 0, 1, 1);
            const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
            const { data } = canvas.getContext("2d")
                .getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4)
                if (data[i] === r && data[i + 1] === g && data[i + 2] === b) count += 1;
            return count;
        })()""")

    wait_until(lambda: known("points") > 0, "a curve")
    points, step, overflows, drawn = known("points"), known("step"), known("overflows"), marks()
    assert overflows >= 5
    assert drawn > 20
    wait_until(lambda: known("points") >= points + 4, "the curve to grow")
    assert known("step") > step
    wait_until(lambda: known("overflows") > overflows, "another overflow")
    wait_until(lambda: marks() > drawn, "its mark")
    wait_until(
        lambda: f"{known('overflows')} overflows in all" in browser.text("#curve-status"),
        "the number of both",
    )


def test_the_keyboard_alone_rolls_back_and_forth(site: Site, browser: Browser) -> None:
    """Every focus is visible, and the worker follows the page."""
    browser.open("/agents/quick")
    keys = browser.driver.switch_to

    def press(*pressed: str) -> None:
        keys.active_element.send_keys(*pressed)

    def tab_to(name: str) -> None:
        for _ in range(40):
            press(Keys.TAB)
            focused, outline = browser.run(
                "[document.activeElement.innerText || document.activeElement.name || '',"
                " getComputedStyle(document.activeElement).outlineStyle]"
            )
            assert outline == "solid", f"the focus on {focused!r} cannot be seen"
            if focused.strip() == name:
                return
        raise AssertionError(f"{name!r} cannot be reached with the Tab key")

    tab_to("Skip to content")
    press(Keys.ENTER)
    assert browser.run("document.activeElement.id") == "main"
    tab_to("Set precision")
    press(Keys.ENTER)
    tab_to("precision")
    tab_to("reason")
    browser.leave(lambda: press("looks odd " + ATTACK, Keys.ENTER))
    assert "The precision is set." in browser.text()
    wait_until(lambda: "FP32" in browser.text(".head"), "the worker's acknowledgement")
    assert "operator: looks odd <script>" in browser.text("#now + dl")
    tab_to("Clear the override")
    press(Keys.ENTER)
    tab_to("reason")
    browser.leave(lambda: press("it was the data", Keys.ENTER))
    wait_until(lambda: "FP16" in browser.text(".head"), "half precision again")
    newest = site.changes()[:2]
    assert [change["action"] for change in newest] == ["precision clear", "precision set"]
    assert {change["actor"] for change in newest} == {"page:token"}
    assert newest[1]["reason"] == "looks odd " + ATTACK


def test_forms_work_without_javascript(site: Site, browser: Browser) -> None:
    with browser.without_javascript():
        browser.open("/agents/hostile")
        _fill(browser, "Pause", "pause-reason", "no script")
        assert "Paused: no run starts" in browser.text()
        assert "paused" in browser.text(".head")
        _fill(browser, "Run now", "run-reason", "while paused")
        assert "paused by page:token: no script" in browser.text(), "refused, with the reason"
        browser.leave(browser.one("main a").click)
        _fill(browser, "Resume", "resume-reason", "enough")
        assert "Resumed." in browser.text()
        browser.open("/")
        browser.driver.find_element(
            By.XPATH, "//summary[contains(., 'Set the precision of all')]"
        ).click()
        Select(browser.one("#all-for")).select_by_value("1")
        _fill(browser, None, "all-reason", "the night shift")
        assert "Override for all agents" in browser.text()
        _fill(browser, "Clear the override", "all-clear-reason", "the day shift")
        assert "Override for all agents" not in browser.text()
        browser.open(f"/runs/{site.newest_run('quick')}")
        browser.one("#numbers summary").click()
        assert "Gradient norm" in browser.text("#numbers")
        browser.open("/audit")
        assert "the night shift" in browser.text("tbody tr:nth-child(2)")


def _fill(browser: Browser, action: str | None, field: str, reason: str) -> None:
    """Open the form of *action*, give a *reason*, and send it."""
    if action is not None:
        browser.driver.find_element(By.XPATH, f"//summary[contains(., '{action}')]").click()
    browser.one(f"#{field}").send_keys(reason)
    browser.leave(
        browser.driver.find_element(By.XPATH, f"//form[.//*[@id='{field}']]//button").click
    )


def test_hostile_text_stays_text(site: Site, browser: Browser) -> None:
    browser.complaints()
    run = site.newest_run("hostile")
    for path, shown in (
        ("/", "<script>"),
        ("/agents/broken", "missing <script>document.title='taken'</script>"),
        ("/agents/hostile", "error </pre><script>"),
        (f"/runs/{run}", "log line </pre><script>document.title='taken'</script><img src=x"),
        ("/?query=%22%3E%3Cscript%3Etaken%3C/script%3E", "No agent matches."),
        ("/agents/%3Cscript%3E", "correct what errors names"),
        ("/nowhere/%3Cscript%3E", "<script>"),
    ):
        browser.open(path)
        assert shown in browser.text(), path
        assert browser.run("document.title") != "taken"
        assert browser.run("document.querySelectorAll('main script, main img').length") == 0
    browser.open("/reports/sweep")
    assert browser.text("h1") == "Precision report"
    assert browser.run("document.title") == "Precision report", "its script does not run"
    for name in ("..%2Fguard", "%2Fetc%2Fpasswd", "none"):
        browser.open(f"/reports/{name}")
        assert "Not Found" in browser.text("h1")


def test_an_ended_run_without_steps_promises_none(site: Site, browser: Browser) -> None:
    browser.open(f"/runs/{site.newest_run('hostile')}")
    assert "failed" in browser.text(".head")
    assert browser.text("#no-steps") == "No step is recorded."


def test_forged_changes_are_refused(site: Site, browser: Browser) -> None:
    before, cookie = site.changes(), _cookie(browser)
    ours, form = {"Origin": site.url}, {"reason": "forged", "precision": "fp32"}
    page = {"Accept": "text/html"}
    for headers, fields in (
        ({**cookie, **ours}, form),
        ({**cookie, **ours}, form | {"csrf": "guessed"}),
        ({**cookie, "Origin": "http://elsewhere.example"}, form),
        ({**cookie, "Origin": "null"}, form),
    ):
        status, _, text = site.send_form("/agents/quick/precision", fields, {**headers, **page})
        assert status == 403, text
        assert "<h1>Forbidden</h1>" in text
    status, headers, _ = site.send_form("/agents/quick/precision", form, {**ours, **page})
    assert (status, headers["location"]) == (303, "/sign-in")
    assert site.changes() == before


def test_a_change_without_a_reason_is_refused(site: Site, browser: Browser) -> None:
    before = site.changes()
    browser.open("/agents/quick")
    csrf = browser.run("document.querySelector('input[name=csrf]').value")
    for path in ("agents/quick/precision", "agents/quick/pause", "precision", "pause"):
        fields = {"csrf": csrf, "precision": "fp32", "reason": " \t "}
        headers = {**_cookie(browser), "Origin": site.url, "Accept": "text/html"}
        status, _, text = site.send_form(f"/{path}", fields, headers)
        assert status == 422, text
        assert "give a reason" in text
    assert site.changes() == before


def test_all_agents_are_paused_and_resumed(site: Site, browser: Browser) -> None:
    browser.open("/")
    _fill(browser, "Pause all agents", "pause-reason", "the cluster moves")
    assert "All agents are paused by page:token" in browser.text()
    assert [pause["agent"] for pause in site.api("GET", "/api/pauses")] == [None]
    _fill(browser, "Resume all agents", "resume-reason", "it has moved")
    assert "All agents are paused" not in browser.text()
    assert site.api("GET", "/api/pauses") == []
    newest = [(change["action"], change["reason"]) for change in site.changes()[:2]]
    assert newest == [("resume", "it has moved"), ("pause", "the cluster moves")]


def test_the_guards_rollback_is_ended(site: Site, browser: Browser) -> None:
    browser.open("/agents/stormy")
    _fill(browser, "End the guard", "guard-reason", "the data is mended")
    assert "probation" in browser.text()
    [decision, trip, *_] = site.api("GET", "/api/agents/stormy/guard")["decisions"]
    assert (decision["state"], decision["actor"]) == ("probation", "page:token")
    assert trip["state"] == "tripped"
    browser.open("/agents/stormy")
    assert "End the guard" not in browser.text(), "it is not tripped any more"


def test_an_earlier_model_is_used_again(site: Site, browser: Browser) -> None:
    model = site.keep_two_models("hostile")
    browser.open("/agents/hostile")
    assert "second in use" in browser.text("#history")
    _fill(browser, "Go back to an earlier model", "model-reason", "the second is worse")
    assert "first in use" in browser.text("#history")
    assert model.read_text() == "first"
    newest = site.changes()[0]
    assert (newest["action"], newest["reason"]) == ("models rollback", "the second is worse")


def test_the_mismatch_of_a_policy_is_shown(site: Site, browser: Browser) -> None:
    site.write_mismatch("hostile")
    browser.open("/agents/hostile")
    shown = browser.text("#history")
    assert "step 70" in shown
    assert "FP16, BF16" in shown
    assert "0.0021" in shown
    assert browser.violations() == []


def test_a_run_is_cancelled_and_the_page_follows(site: Site, browser: Browser) -> None:
    """And no page has asked for anything that its policy refuses."""
    run = site.newest_run("quick")
    browser.open(f"/runs/{run}")
    _fill(browser, "Cancel this run", "cancel-reason", "enough")
    assert "will be cancelled" in browser.text()
    wait_until(lambda: "cancelled" in browser.text(".head"), "the run to end")
    policy = site.ask("GET", "/sign-in", {})[1]["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    refused = [
        complaint for complaint in browser.complaints() if "Content Security Policy" in complaint
    ]
    assert [complaint for complaint in refused if "/reports/" not in complaint] == []


def test_a_page_says_when_it_is_out_of_date(site: Site, browser: Browser) -> None:
    """Last: it stops the daemon."""
    browser.open("/")
    site.daemon.stop()
    browser.run("htmx.trigger(document.body, 'changed')")
    wait_until(lambda: "does not answer" in browser.text(), "the notice")
