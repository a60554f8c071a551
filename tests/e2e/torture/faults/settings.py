"""Faults of the settings file, the flag, and operators' overrides."""

from __future__ import annotations

import os
import signal

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import Round, TortureRun
from tests.e2e.torture.service import event_lines


def _long_half_run(r: Round, seconds: float = 5.0) -> TortureRun:
    """A run in FP16 that trains for about so many seconds."""
    run = r.start(agent=r.in_half(), pace_seconds=seconds / 90, attempts={1})
    r.training_in_half(run)
    return run


@fault("flag flipped")
def flag_flipped(r: Round) -> None:
    run = _long_half_run(r)
    r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
    r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="true"), "fp16")


@fault("flag flipped again and again")
def flag_flipped_often(r: Round) -> None:
    """The last value counts."""
    run = _long_half_run(r, 8.0)
    for _ in range(r.rng.randint(3, 12)):
        r.service.configure(ENABLE_FP16_TRAINING=r.rng.choice(("true", "false")))
        r.sleep(0.0, 0.3)
        if r.rng.random() < 0.3:
            r.service.send(signal.SIGHUP)
    r.service.configure(ENABLE_FP16_TRAINING="true")
    r.service.wait_for_settings()
    r.training_in_half(run)
    r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
    r.service.configure(ENABLE_FP16_TRAINING="true")


@fault("settings file emptied, removed or made invalid")
def settings_damaged(r: Round) -> None:
    """A rollback stays in force through it, and the next good file applies."""
    run = _long_half_run(r, 7.0)
    r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
    path = r.service.env_path
    how = r.rng.choice(("emptied", "removed", "wrong value", "binary", "folder", "link to itself"))
    r.note(how)
    if how == "emptied":
        os.truncate(path, 0)
    elif how == "wrong value":
        path.write_text(path.read_text().replace("=false", "=maybe", 1) + "GENESIS_SLOTS=none\n")
    elif how == "binary":
        path.write_bytes(b"\x00\xff" * 100)
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "link to itself":
            path.symlink_to(path.name)
    if r.rng.random() < 0.5:
        r.service.send(signal.SIGHUP)
    r.sleep(1.0, 1.6)
    back = [e for e in run.events("precision_changed") if e["state"]["effective"] == "fp16"]
    r.check(len(back) <= 1, "the rollback was lost with the settings file")
    if how == "folder":
        path.rmdir()
    since = r.service.configure(ENABLE_FP16_TRAINING="true")
    r.check_obeyed(run, since, "fp16")


@fault("override set and cleared")
def override(r: Round) -> None:
    run = _long_half_run(r, 8.0)
    scope = ("--agent", run.agent) if r.rng.random() < 0.5 else ()
    r.note(" ".join(scope) or "all agents")
    _command(r, "precision", "set", "fp32", "--reason", "torture", *scope)
    r.wait(lambda: run.precision() == "fp32", "the override")
    _command(r, "precision", "clear", "--reason", "torture", *scope)
    r.wait(lambda: run.precision() == "fp16" or r.row(run).state == "succeeded", "its end")


def _command(r: Round, *arguments: str) -> None:
    code, output = r.service.command(*arguments)
    r.check(code == 0, f"{' '.join(arguments)} ended with {code}: {output[-300:]}")


@fault("flag false while the daemon is killed")
def flag_survives_kill(r: Round) -> None:
    """The next daemon obeys it from the first step on."""
    run = r.start(agent=r.in_half(), pace_seconds=0.03)
    r.training_in_half(run)
    r.check_obeyed(run, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
    r.service.end(signal.SIGKILL)
    r.service.start()
    r.until_ended(run)
    attempts = r.row(run).attempts
    if len(attempts) > 1:
        path = run.attempt_folder(2) / "events.ndjson"
        stats = [e for e in event_lines(path) if e["kind"] == "step_stats"]
        half = [e for e in stats if e["precision"] != "fp32"]
        r.check(not half, "a run resumed in half precision under a false flag")
    r.service.configure(ENABLE_FP16_TRAINING="true")
