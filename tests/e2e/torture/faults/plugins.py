"""Faults of plugins: they raise, exit, crash, hang, answer nonsense, come, change and go."""

from __future__ import annotations

import signal

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import Round, TortureRun, moment
from tests.e2e.torture.service import AGENT_DISTRIBUTION, AGENTS, LATE, SCHEDULED

_PLACES = (("collect", 20), ("build", 0), ("batch", 40), ("evaluate", 0), ("publish", 0))
_ENDINGS = ("raise", "exit", "sys-exit", "segfault", "abort", "no-memory")


@fault("plugin fails once", quick=True)
def fails_once(r: Round) -> None:
    place, count = r.rng.choice(_PLACES)
    do = r.rng.choice(_ENDINGS)
    r.start(moment(place, count, do, code=r.rng.choice((0, 1, 3))), attempts={2})


@fault("plugin fails at every attempt", quick=True)
def fails_always(r: Round) -> None:
    place, count = r.rng.choice(_PLACES)
    do = r.rng.choice(_ENDINGS)
    r.start(
        moment(place, count, do, always=True, code=1),
        states=frozenset({"failed", "crashed"}),
        attempts={4},
    )


@fault("plugin fails in three ways")
def fails_in_many_ways(r: Round) -> None:
    places = r.rng.sample(_PLACES, 3)
    r.start(
        *(moment(place, count, r.rng.choice(_ENDINGS)) for place, count in sorted(places)),
        attempts={4},
    )


@fault("plugin hangs")
def hangs(r: Round) -> None:
    """It makes no progress, so it is killed and tried again."""
    place, count = r.rng.choice(_PLACES)
    r.start(moment(place, count, "hang"), attempts={2})


@fault("plugin prints much", quick=True)
def prints_much(r: Round) -> None:
    place, count = r.rng.choice(_PLACES)
    r.start(moment(place, count, "print-much"), attempts={1})


@fault("plugin fails while it loads")
def fails_to_load(r: Round) -> None:
    """In the worker; in the probe it was well."""
    do = r.rng.choice(("raise", "exit", "segfault", "sys-exit"))
    run = r.start(moment("load", 1, do, code=1))
    if do in ("raise", "sys-exit"):  # a plugin that refuses to load is not tried again
        run.states = frozenset({"failed", "succeeded"})


def _held(r: Round) -> TortureRun:
    """A run whose worker holds in training, while no other run is about to load the plugin."""
    r.until_ended(r.runs[0])
    run = r.start(moment("batch", r.step(), "hold"), pace_seconds=0.004)
    r.until_reached(run)
    return run


def _until_logged(r: Round, *texts: str) -> None:
    """Wait until the daemon logs a new line with *texts*; at random it is told to look."""
    if r.rng.random() < 0.5:
        r.note("SIGHUP")
        r.service.send(signal.SIGHUP)
    r.wait(lambda: r.service.has_logged(*texts), f"the log to have {' '.join(texts)}")


def _end(r: Round, run: TortureRun) -> None:
    """Let *run* go on, or kill its worker so that the next attempt loads the plugin anew."""
    run.attempts = {1}
    if r.rng.random() < 0.5:
        r.note("worker killed")
        r.kill_worker(run, signal.SIGKILL)
        run.attempts = {2}
    r.go_on(run)
    r.until_ended(run)


@fault("plugin upgraded while the daemon serves")
def upgraded(r: Round) -> None:
    """The run goes on, and the next one finds the new version."""
    run = _held(r)
    version = r.service.install(AGENT_DISTRIBUTION, *AGENTS, SCHEDULED)
    _until_logged(r, "plugin_ready", r.victim, f"{AGENT_DISTRIBUTION} {version}")
    _end(r, run)
    r.until_ended(r.start(attempts={1}))


@fault("plugin removed and installed again while the daemon serves")
def removed(r: Round) -> None:
    """A run that is queued meanwhile waits for the plugin."""
    run = _held(r)
    run.attempts = {1}
    before = r.service.log.count("plugin_pending")
    r.service.uninstall(AGENT_DISTRIBUTION)
    r.wait(lambda: r.service.log.count("plugin_pending") > before, "the daemon to miss the plugin")
    r.go_on(run)
    r.until_ended(run)
    waiting = r.start(attempts={1})
    r.sleep(0.0, 1.0)
    r.check(not r.row(waiting).attempts, "a run of a plugin that is not installed was started")
    version = r.service.install(AGENT_DISTRIBUTION, *AGENTS, SCHEDULED)
    _until_logged(r, "plugin_ready", r.victim, f"{AGENT_DISTRIBUTION} {version}")
    r.until_ended(waiting)


@fault("plugin installed while the daemon serves")
def installed(r: Round) -> None:
    """Its runs start without a restart; then it goes again, beside a run of its own."""
    version = r.service.install("torture-late", LATE)
    try:
        _until_logged(r, "plugin_ready", LATE, f"torture-late {version}")
        run = r.start(moment("batch", r.step(), "hold"), agent=LATE, attempts={1})
        r.until_reached(run)
    finally:
        r.service.uninstall("torture-late")
    r.go_on(run)
    r.until_ended(run)
