"""Every endpoint that reads, over a real socket, on a home with runs, decisions and overrides."""

import json
import time

import pytest

from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.domain.precision import Override
from genesis_fp16.domain.run import Ending, PartTotals, RunState, RunSummary, RunTransition
from genesis_fp16.guard.evidence import write_evidence
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import Evaluated, Notice, PartStats, PrecisionChanged, StepStats

pytestmark = pytest.mark.process
STATE = PrecisionState(requested="fp16", effective="fp16", reason="default")


@pytest.fixture(scope="module")
def trained(api) -> str:
    """A run of se-darwin with 100 windows of ten steps, one overflow in each; it goes on."""
    run = api.store.enqueue("se-darwin", first_seed=3)
    attempt = api.store.begin_attempt(run.id, "i1")
    folder = attempt_folder(api.home, attempt)
    folder.mkdir(parents=True)
    (folder / "worker.log").write_text("first\n" * 1000 + "\x1b[31mlast\n")
    with EventWriter(folder / "events.ndjson") as write:
        write(PrecisionChanged(step=0, state=STATE, loss_scale=1024.0))
        for window in range(1, 101):
            write(
                StepStats(
                    step=10 * window,
                    applied=9,
                    overflow=1,
                    fp16=10,
                    loss=1.0 / window,
                    loss_scale=1024.0,
                    precision="fp16",
                )
            )
        write(Evaluated(epoch=1, metrics={"r2": 0.5}, primary="r2", higher_is_better=True))
    api.store.move(run.id, RunState.RUNNING)
    api.store.update_summary(run.id, RunSummary(steps=1000, precision=STATE.fields))
    return run.id


def test_health_names_the_daemon(api) -> None:
    health = api.get("/api/health")
    assert (health["ready"], health["device"], health["trouble"]) == (True, "cpu", "")
    assert health["pid"]


def test_an_agent_shows_its_precision_and_its_last_run(api, trained: str) -> None:
    shown = {agent["name"]: agent for agent in api.get("/api/agents")}
    agent = shown["se-darwin"]
    assert agent == api.get("/api/agents/se-darwin")
    assert agent["last_run"]["id"] == trained
    assert agent["precision"]["acknowledged"]["run"] == trained
    assert agent["precision"]["effective"] == "fp16", "the device may compute halves"
    assert shown["policy"]["state"] == "disabled"
    assert "GENESIS_AGENTS__POLICY__ENABLED" in shown["policy"]["why"]


def test_the_demands_of_a_precision(api) -> None:
    api.store.overrides.set(
        Override(agent="policy", precision="fp32", reason="why", actor="me", created_at=time.time())
    )
    state = api.get("/api/agents/policy/precision")
    assert (state["effective"], state["reason"]) == ("fp32", "operator")
    demands = [
        (demand["reason"], demand["precision"], demand["decides"]) for demand in state["demands"]
    ]
    assert demands == [("operator", "fp32", True), ("default", "fp16", False)]
    assert state["overrides"][0]["actor"] == "me"
    assert api.get("/api/precision")["overrides"] == state["overrides"]


def test_the_guards_decision_and_its_evidence(api) -> None:
    decision = Decision(
        agent="waltzrl-feedback",
        state=GuardState.TRIPPED,
        at=time.time(),
        trigger=Trigger.OVERFLOW_STORM,
        level=1,
        reason="60 of 100 steps overflowed",
    )
    api.store.guard.add(write_evidence(api.home, decision, {"statistics": [{"loss_scale": 4.0}]}))
    guard = api.get("/api/agents/waltzrl-feedback/guard")
    assert (guard["state"], guard["decisions"][0]["trigger"]) == ("tripped", "overflow_storm")
    assert guard["evidence"]["statistics"] == [{"loss_scale": 4.0}]
    assert api.get("/api/agents/waltzrl-feedback")["precision"]["reason"] == "guard"
    (api.home / guard["decisions"][0]["evidence"]).write_text("spoilt")
    assert "cannot be read" in api.get("/api/agents/waltzrl-feedback/guard")["evidence_trouble"]


def test_a_run_with_its_attempt(api, trained: str) -> None:
    run = api.get(f"/api/runs/{trained}")
    assert api.get(f"/api/runs/se-darwin%23{run['number']}") == run
    [attempt] = run["attempts"]
    assert (run["state"], run["steps"], attempt["has_log"]) == ("running", 1000, True)
    assert attempt["events"] == {"precision_changed": 1, "step_stats": 100, "evaluated": 1}
    assert attempt["precision"][0]["effective"] == "fp16"
    assert attempt["evaluation"]["metrics"] == {"r2": 0.5}


def test_a_curve_is_thinned_and_loses_no_step(api, trained: str) -> None:
    whole = api.get(f"/api/runs/{trained}/curve?points=200")
    thin = api.get(f"/api/runs/{trained}/curve?points=10")
    assert len(whole["points"]) == 100
    assert 5 <= len(thin["points"]) <= 10
    for curve in (whole, thin):
        assert sum(point["steps"] for point in curve["points"]) == 1000
        assert sum(point["overflows"] for point in curve["points"]) == 100
        assert curve["points"][-1]["step"] == 1000
    assert whole["last_event_id"] == thin["last_event_id"] != "0:0"


def test_the_end_of_a_log(api, trained: str) -> None:
    tail = api.get(f"/api/runs/{trained}/attempts/1/log?bytes=20")
    assert tail["text"].endswith("first\nlast\n")
    assert tail["skipped_bytes"] + 20 == tail["size_bytes"]


def test_a_log_that_became_a_link_is_not_followed(api, trained: str) -> None:
    log = api.home / "runs" / trained / "attempts" / "1" / "worker.log"
    kept = log.read_bytes()
    log.unlink()
    log.symlink_to("/etc/passwd")
    answer = api.ask("GET", f"/api/runs/{trained}/attempts/1/log")
    log.unlink()
    log.write_bytes(kept)
    assert answer.status == 404
    assert b"root" not in answer.body


def test_runs_come_in_pages(api, trained: str) -> None:
    newer = api.store.enqueue("policy", first_seed=0)
    first = api.get("/api/runs?limit=1")
    assert [run["id"] for run in first] == [newer.id]
    rest = api.get(f"/api/runs?before={newer.id}")
    assert [run["id"] for run in rest] == [trained]
    assert [run["id"] for run in api.get("/api/runs?state=running")] == [trained]
    assert [run["id"] for run in api.get("/api/runs?agent=policy")] == [newer.id]


def test_settings_are_shown_without_credentials(api) -> None:
    answer = api.get("/api/settings")
    shown = {setting["name"]: setting for setting in answer["settings"]}
    assert shown["GENESIS_API_TOKEN"]["value"] == "***"
    assert api.settings.api_token not in json.dumps(answer)
    assert shown["ENABLE_FP16_TRAINING"] == {
        "name": "ENABLE_FP16_TRAINING",
        "value": "true",
        "source": "default",
        "hot": True,
    }


def test_the_checks_of_doctor(api) -> None:
    report = api.get("/api/doctor")
    assert {"library", "database", "lock"} <= {check["check"] for check in report["checks"]}
    assert report["verdict"] in ("ok", "warn", "fail")
    assert api.get("/api/doctor")["checked_at"] == report["checked_at"], "kept for some seconds"


def test_what_is_unknown_is_a_problem_with_a_remedy(api) -> None:
    answer = api.ask("GET", "/api/agents/se-darwim")
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert "mean se-darwin?" in answer.json()["detail"]
    assert api.ask("GET", "/api/runs/20260101T000000-00000000").status == 404
    assert api.ask("GET", "/api/runs/se-darwin%2399999").status == 404
    assert api.ask("GET", "/api/agents/UPPER").status == 422
    assert api.ask("GET", "/nowhere").json()["detail"].startswith("nothing is at /nowhere")
    assert api.ask("DELETE", "/api/health").status == 405


def test_the_reports_of_the_lab_are_listed_and_read(api) -> None:
    path = api.home / "reports" / "sweep" / "report.html"
    path.parent.mkdir(parents=True)
    path.write_text("<h1>Report</h1>")
    [report] = api.get("/api/reports")
    assert (report["name"], report["bytes"]) == ("sweep", 15)
    answer = api.ask("GET", "/api/reports/sweep")
    assert (answer.status, answer.body) == (200, b"<h1>Report</h1>")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert api.ask("GET", "/api/reports/nothing").status == 404


def test_an_attempt_shows_why_it_failed_and_what_it_waits_for(api) -> None:
    run = api.store.enqueue("replay", first_seed=4)
    failed = api.store.begin_attempt(run.id, "i4")
    again = RunTransition(state=RunState.QUEUED, failed=True)
    api.store.end_attempt(failed, Ending(exit_code=3), again, finished_at=2.0, error="worn out")
    api.store.begin_attempt(run.id, "i5")
    api.store.update_attempt("i5", waiting="in the queue of slurm")
    shown = api.get(f"/api/runs/{run.id}")["attempts"]
    assert [attempt["error"] for attempt in shown] == ["worn out", None]
    assert [attempt["waiting"] for attempt in shown] == [None, "in the queue of slurm"]


def test_doubts_about_the_data_are_shown_once(api) -> None:
    run = api.store.enqueue("doubtful", first_seed=3)
    attempt = api.store.begin_attempt(run.id, "i-doubtful")
    folder = attempt_folder(api.home, attempt)
    folder.mkdir(parents=True)
    doubt = {"finding": "leak", "problem": "<x> alone predicts y", "remedy": "remove <x>"}
    with EventWriter(folder / "events.ndjson") as write:
        for _ in "ab":
            write(Notice(level="warning", event="training_data_doubtful", fields=doubt))
    [shown] = api.get(f"/api/runs/{run.id}")["attempts"]
    assert shown["data_problems"] == ["<x> alone predicts y; remove <x>"]
    page = api.ask("GET", f"/runs/{run.id}", headers={"Accept": "text/html"})
    assert page.body.count(b"&lt;x&gt; alone predicts y; remove &lt;x&gt;") == 1


def test_the_parts_of_a_job(api, trained: str) -> None:
    assert api.get(f"/api/runs/{trained}")["parts"] is None
    assert api.get(f"/api/runs/{trained}/curve")["points"][0]["parts"] == []
    run = api.store.enqueue("parts", first_seed=3)
    attempt = api.store.begin_attempt(run.id, "i-parts")
    folder = attempt_folder(api.home, attempt)
    folder.mkdir(parents=True)
    critic = PartStats(name="critic", attempted=8, overflow=1, loss=0.5, loss_scale=64.0)
    others = [PartStats(name=f"p{n}", attempted=1) for n in range(20)]  # too many: a wrong worker
    with EventWriter(folder / "events.ndjson") as write:
        for step in (8, 16):
            write(
                StepStats(
                    step=step,
                    applied=7,
                    overflow=1,
                    loss_scale=64.0,
                    precision="fp16",
                    parts=(critic, *others),
                )
            )
    totals = PartTotals(steps=16, overflows=2, loss=0.5, loss_scale=64.0)
    api.store.update_summary(run.id, RunSummary(steps=16, parts={"critic": totals}))
    shown = api.get(f"/api/runs/{run.id}")
    assert shown["parts"]["critic"]["overflows"] == 2
    assert [view["parts"] for view in api.get("/api/runs?agent=parts")] == [shown["parts"]]
    [point, _] = api.get(f"/api/runs/{run.id}/curve")["points"]
    assert len(point["parts"]) == 8
    assert point["parts"][0] == {
        "name": "critic",
        "steps": 8,
        "overflows": 1,
        "nonfinite_losses": 0,
        "loss": 0.5,
        "grad_norm": None,
        "loss_scale": 64.0,
    }
