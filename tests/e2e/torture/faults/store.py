"""Faults of the store, the queue and the timetable."""

from __future__ import annotations

import signal

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import Round, moment
from tests.e2e.torture.service import SCHEDULED, Row


@fault("store locked by another process", quick=True)
def store_locked(r: Round) -> None:
    """What cannot be recorded now is recorded later; the flag does not wait for it."""
    run = r.start(agent=r.in_half(), pace_seconds=0.02, attempts={1})
    r.training_in_half(run)
    kind = r.rng.choice(r.service.database.locks)
    r.note(kind)
    with r.service.database.locked(kind):
        if r.rng.random() < 0.7:
            r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
        r.sleep(1.0, 3.0)
    r.service.configure(ENABLE_FP16_TRAINING="true")


@fault("store locked while the daemon ends and starts")
def store_locked_at_start(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    with r.service.database.locked(r.service.database.locks[0]):
        r.service.send(signal.SIGTERM)
        r.go_on(run)
        r.sleep(0.5, 3.0)
    r.wait(lambda: r.service.status() is not None, "the daemon to end")
    r.service.start()


@fault("run cancelled", quick=True)
def run_cancelled(r: Round) -> None:
    place = r.rng.choice(("queued", "collect", "batch", "hang", "publish"))
    r.note(place)
    if place == "queued":
        first = r.start(moment("batch", 30, "hold"))
        r.until_reached(first)
        run = r.start_another()
    elif place == "hang":
        run = first = r.start(moment("batch", 20, "hang"))
        r.until_reached(run)
    else:
        count = {"collect": 20, "batch": 40, "publish": 0}[place]
        run = first = r.start(moment(place, count, "hold"))
        r.until_reached(run)
    r.check(r.service.cancel(run.id), "the request to cancel was refused")
    if place != "queued":
        r.sleep(0.5, 1.0)
    r.go_on(first)
    done = {"cancelled", "succeeded"} if place == "publish" else {"cancelled"}
    run.states = frozenset(done)


@fault("several runs of an agent in the queue")
def queue_of_runs(r: Round) -> None:
    """One at a time; some with a daemon that is killed in between."""
    run = r.start(moment("batch", r.step(), "kill"))
    for _ in range(2):
        r.start_another()
    if r.rng.random() < 0.5:
        r.until_ended(run)
        r.service.end(signal.SIGKILL)
        r.service.start()
        r.note("daemon killed")


@fault("due while the daemon was down")
def due_in_downtime(r: Round) -> None:
    """Of the due times that were missed, the last becomes a run, exactly one."""
    before = {row.id for row in r.service.rows()}
    r.service.plan(SCHEDULED, [])
    r.service.end(signal.SIGTERM)
    missed = r.rng.randint(1, 9)
    r.note(f"{missed} times")
    moved = r.service.database.write(
        f"UPDATE schedule_state SET last_due = last_due - {missed * 300 * 86400.0} "
        f"WHERE agent = '{SCHEDULED}'"
    )
    r.check(moved == 1, "the agent has no last due time")
    r.service.start()

    def due() -> list[Row]:
        return [x for x in r.service.rows() if x.id not in before and x.agent == SCHEDULED]

    r.wait(due, "the run that was missed")
    for row in due():
        r.follow(row.id, SCHEDULED, seed=-1)
    r.until_ended()
    r.check(len(due()) == 1, f"{len(due())} runs became due")
