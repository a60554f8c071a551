"""Who gives a command, for the audit trail."""

from __future__ import annotations

import os

import psutil

from genesis_fp16.store.failure import user_name


def actor(process: psutil.Process | None = None) -> str:
    """Name of the account that gives the command; ``ann (as genesis-fp16)`` behind ``sudo``.

    The person is told by the kernel: who owns the process that has called a ``sudo`` of root's
    above this one. That is a courtesy, not a proof. Where ``sudo`` leaves no process behind or
    others' processes are hidden, the account alone is named; and whoever has the account can
    write into the database whatever they like: the record is as trustworthy as the account.

    Args:
        process: Instead of this one.
    """
    account = user_name(os.geteuid())
    try:
        for above in (process or psutil.Process()).parents():
            caller = above.parent()
            if above.name() == "sudo" and above.uids().effective == 0 and caller is not None:
                person = caller.uids().real
                if person != 0:
                    return f"{user_name(person)} (as {account})"
    except psutil.Error:  # hidden, or ended meanwhile
        pass
    return account
