"""The person who gives a command, for the audit trail."""

from __future__ import annotations

import os

import psutil

from genesis_fp16.store.errors import user_name


def actor(process: psutil.Process | None = None) -> str:
    """Name of the account that gives the command; ``ann (as genesis-fp16)`` behind ``sudo``.

    The kernel tells the person: the owner of the process that called root's ``sudo`` above this
    one. This is a convenience, not a proof: where ``sudo`` leaves no process behind or other
    users' processes are hidden, only the account is named. Anyone with that account can write
    into the database directly, so the record is as trustworthy as the account. The *process* to
    ask about is this one by default.
    """
    account = user_name(os.geteuid())
    try:
        for above in (process or psutil.Process()).parents():
            caller = above.parent()
            if above.name() == "sudo" and above.uids().effective == 0 and caller is not None:
                person = caller.uids().real
                if person != 0:
                    return f"{user_name(person)} (as {account})"
    except psutil.Error:  # the process is hidden or has ended
        pass
    return account
