"""Every change by the API is made as the command makes it, and is in the audit trail."""

import os
import time
from urllib.parse import urlencode

import pytest

from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.domain.run import RunState
from genesis_fp16.plugins.model_versions import ModelVersion, describe_published, keep_version
from genesis_fp16.store.errors import user_name
from tests.genesis_fp16.api.conftest import TOKEN

pytestmark = pytest.mark.process
ME = f"api:{user_name(os.geteuid())}"
REASON = {"reason": "because"}


def last_change(api) -> tuple[str, str, str, str]:
    newest = api.get("/api/audit?limit=1")[0]
    return newest["actor"], newest["action"], newest["subject"], newest["reason"]


def test_run_now_and_cancel(api) -> None:
    answer = api.ask("POST", "/api/agents/se-darwin/run", REASON)
    assert answer.status == 202
    run = answer.json()
    assert (run["state"], run["trigger"]) == ("queued", "manual")
    assert last_change(api) == (ME, "run", "se-darwin", "because")
    cancelled = api.ask("POST", f"/api/runs/{run['id']}/cancel", REASON)
    assert (cancelled.status, cancelled.json()["cancel_requested"]) == (202, True)
    assert last_change(api) == (ME, "cancel", run["id"], "because")
    api.store.move(run["id"], RunState.CANCELLED)
    again = api.ask("POST", f"/api/runs/{run['id']}/cancel", REASON)
    assert (again.status, again.json()["title"]) == (409, "Conflict")


def test_the_queue_is_shown_and_changed(api) -> None:
    first, second = (api.store.enqueue("se-darwin", first_seed=0).id for _ in range(2))
    moved = api.ask("POST", f"/api/runs/{second}/move", REASON | {"to": "first"})
    assert (moved.status, moved.json()["id"]) == (200, second)
    assert last_change(api) == (ME, "run move", second, "because")
    waiting = api.get("/api/queue")
    assert [one["run"]["id"] for one in waiting][:2] == [second, first]
    assert api.get(f"/api/runs/{second}")["waits"] == waiting[0]
    for run_id in (first, second):
        api.store.move(run_id, RunState.CANCELLED)
    late = api.ask("POST", f"/api/runs/{second}/move", REASON | {"to": "last"})
    assert (late.status, late.json()["title"]) == (409, "Conflict")
    assert api.get(f"/api/runs/{second}")["waits"] is None


def test_an_agent_that_is_off_does_not_run(api) -> None:
    answer = api.ask("POST", "/api/agents/policy/run", REASON)
    assert answer.status == 409
    assert "GENESIS_AGENTS__POLICY__ENABLED=true" in answer.json()["detail"]
    assert api.ask("POST", "/api/agents/nosuch/run", REASON).status == 404


def test_precision_set_and_cleared(api) -> None:
    wish = {"precision": "fp32", "agent": "se-darwin", "for_seconds": 3600}
    answer = api.ask("POST", "/api/precision/set", wish | REASON)
    assert answer.status == 200
    assert 3590 < answer.json()["expires_at"] - time.time() < 3601
    [override] = api.store.overrides.in_force()
    assert (override.agent, override.precision, override.actor) == ("se-darwin", "fp32", ME)
    assert last_change(api) == (ME, "precision set", "se-darwin", "because")
    cleared = [
        api.ask("POST", "/api/precision/clear", {"agent": "se-darwin"} | REASON).json()
        for _ in range(2)
    ]
    assert cleared == [{"cleared": True}, {"cleared": False}]
    assert last_change(api) == (ME, "precision clear", "se-darwin", "because")
    assert api.store.overrides.in_force() == []


def test_the_token_is_named_as_the_actor(api) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    wish = {"precision": "fp32"} | REASON
    assert api.ask("POST", "/api/precision/set", wish, tcp=True, headers=bearer).status == 200
    assert last_change(api) == ("api:token", "precision set", "all", "because")
    assert api.ask("POST", "/api/precision/clear", REASON).json() == {"cleared": True}


def test_a_rollback_by_the_guard_is_ended_with_evidence(api) -> None:
    assert api.ask("POST", "/api/agents/se-darwin/guard/clear", REASON).json() == {"cleared": False}
    tripped = Decision(
        agent="se-darwin", state=GuardState.TRIPPED, at=1.0, trigger=Trigger.SCALE_FLOOR, level=1
    )
    api.store.guard.add(tripped)
    assert api.ask("POST", "/api/agents/se-darwin/guard/clear", REASON).json() == {"cleared": True}
    assert last_change(api) == (ME, "guard clear", "se-darwin", "because")
    decision = api.store.guard.latest()["se-darwin"]
    assert decision.state is GuardState.PROBATION
    assert (api.home / decision.evidence).is_file()


def test_pause_and_resume(api) -> None:
    paused = api.ask("POST", "/api/pauses/begin", {"agent": "se-darwin"} | REASON)
    assert paused.status == 200
    assert last_change(api) == (ME, "pause", "se-darwin", "because")
    assert api.get("/api/pauses") == [paused.json()]
    assert api.get("/api/agents/se-darwin")["pauses"] == [paused.json()]
    refused = api.ask("POST", "/api/agents/se-darwin/run", REASON)
    assert refused.status == 409
    assert "paused by" in refused.json()["detail"]
    assert api.ask("POST", "/api/pauses/end", REASON).json() == {"cleared": False}
    resumed = api.ask("POST", "/api/pauses/end", {"agent": "se-darwin"} | REASON)
    assert resumed.json() == {"cleared": True}
    assert last_change(api) == (ME, "resume", "se-darwin", "because")
    assert api.get("/api/pauses") == []


def test_back_to_an_earlier_model(api) -> None:
    folder, replaced = api.home / "agents" / "se-darwin", None
    (folder / "published").mkdir(parents=True)
    for name in ("v1", "v2"):
        (folder / "published" / "model.bin").write_text(name)
        version = ModelVersion(
            id=name,
            run_id=None,
            published_at=float(name[1]),
            replaced=replaced,
            reason="better",
            metrics={"r2": 0.5},
            data=None,
            files=describe_published(folder),
        )
        keep_version(folder, version, keep=5)
        replaced = name
    models = api.get("/api/agents/se-darwin/models")
    assert (models["in_use"], [version["id"] for version in models["versions"]]) == (
        "v2",
        ["v2", "v1"],
    )
    path = "/api/agents/se-darwin/models/rollback"
    assert api.ask("POST", path, REASON).json()["in_use"] == "v1"
    assert (folder / "published" / "model.bin").read_text() == "v1"
    assert last_change(api) == (ME, "models rollback", "se-darwin", "because")
    assert api.ask("POST", path, {"version": "v1"} | REASON).status == 409


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/api/precision/set", {"precision": "fp32"}),
        ("/api/precision/set", {"precision": "fp32", "reason": " "}),
        ("/api/precision/set", {"precision": "fp8", "reason": "x"}),
        ("/api/precision/set", {"precision": "fp32", "reason": "x", "for_seconds": 1e300}),
        ("/api/precision/set", {"precision": "fp32", "reason": "x", "agnet": "se-darwin"}),
        ("/api/agents/se-darwin/run", {}),
        ("/api/pauses/begin", {"agent": "se-darwin"}),
        ("/api/runs/20260101T000000-00000000/cancel", []),
    ],
)
def test_a_wrong_change_is_refused_whole(api, path: str, change: object) -> None:
    before = api.get("/api/audit")
    answer = api.ask("POST", path, change)
    assert answer.status == 422
    assert answer.json()["errors"]
    assert api.get("/api/audit") == before


@pytest.mark.parametrize("blank", ["", " \n", "\x07"])
def test_a_change_without_a_reason_is_told_to_give_one(api, blank: str) -> None:
    answer = api.ask("POST", "/api/pauses/begin", {"agent": "se-darwin", "reason": blank})
    assert answer.status == 422
    assert answer.json()["errors"] == ["body.reason: give a reason: the audit trail needs one"]


def send_form(api, path: str, **fields: str):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return api.ask("POST", path, urlencode({"reason": "because", **fields}), headers=form)


@pytest.mark.parametrize("hours", ["0", "-1", "8785", "1" * 10, "000000001" + "0" * 400, "x"])
def test_a_form_with_a_wrong_time_changes_nothing(api, hours: str) -> None:
    before = api.get("/api/precision")["overrides"]
    assert send_form(api, "/precision", precision="fp32", hours=hours).status == 422
    assert api.get("/api/precision")["overrides"] == before


def test_a_form_says_whether_a_pause_has_ended(api) -> None:
    for path, place in (("", "/"), ("/agents/se-darwin", "/agents/se-darwin")):
        assert send_form(api, f"{path}/pause").status == 303
        for done in ("resumed", "not-paused"):
            answer = send_form(api, f"{path}/resume")
            assert (answer.status, answer.headers["location"]) == (303, f"{place}?done={done}")


def test_a_page_links_to_no_other_host(api) -> None:
    answer = api.ask("GET", "//elsewhere.example/", headers={"Accept": "text/html"})
    assert answer.status == 404
    assert b'href="/elsewhere.example/"' in answer.body
