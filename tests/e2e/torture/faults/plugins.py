"""Faults of plugins: they raise, exit, crash, hang, and answer nonsense."""

from __future__ import annotations

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import Round, moment

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
