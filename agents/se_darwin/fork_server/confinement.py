"""Confine this process irrevocably: namespaces, user, Landlock, resource limits. Linux only.

Every layer is attempted and reported. Whether they hold together is tested by the escape probe of
`agents.se_darwin.sandbox`, not assumed. Numbers are those of the kernel's stable ABI.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x4_0000
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_SYS_MOUNT_SETATTR, _SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_RESTRICT = 442, 444, 446
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x2008_0522
_NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def enter_namespaces() -> str:
    """Leave the host's network, processes, mounts and IPC; mounts become read-only.

    The process namespace takes effect for children. Root uses its privilege; other users use a
    user namespace in which they keep their identity.

    Returns:
        ``on``, or ``refused: `` and the reason.
    """
    flags = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET | _CLONE_NEWPID
    uid, gid = os.getuid(), os.getgid()
    try:
        if uid == 0:
            check(libc.unshare(flags))
        else:
            check(libc.unshare(flags | _CLONE_NEWUSER))
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
        attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
        _syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, ctypes.byref(attributes), 32)
    except OSError as error:
        return f"refused: {error.strerror}"
    return "on"


def drop_user() -> str:
    """Change to the user nobody if this is root, and drop every capability.

    Returns:
        ``on``, ``not root``, or ``refused: `` and the reason.
    """
    outcome = "not root"
    try:
        if os.geteuid() == 0:
            try:
                nobody = pwd.getpwnam("nobody").pw_uid
            except KeyError:
                nobody = _NOBODY
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(nobody, nobody, nobody)
            outcome = "on"
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        check(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))
    except OSError as error:
        return f"refused: {error.strerror}"
    return outcome


def enter_landlock() -> str:
    """Deny every path, every TCP port, and signals and abstract sockets to the outside.

    Modules are imported before, so no file needs to be read afterwards.

    Returns:
        ``on (ABI n)``, or ``refused: `` and the reason.
    """
    try:
        check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        abi = _syscall(_SYS_LANDLOCK_CREATE, None, 0, 1)
        paths = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
        rules = (ctypes.c_uint64 * 3)(
            paths.get(abi, (1 << 16) - 1), 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0
        )
        ruleset = _syscall(_SYS_LANDLOCK_CREATE, ctypes.byref(rules), 24, 0)
        _syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)
    except OSError as error:
        return f"refused: {error.strerror}"
    return f"on (ABI {abi})"


def forbid_tracing() -> None:
    """Prevent this process and its children from tracing one another."""
    check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    check(libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0))


def limit_resources(*, memory_bytes: int, cpu_seconds: float) -> None:
    """Forbid new processes, threads, descriptors and file contents; cap memory and CPU time.

    Without descriptors there is no ``open`` and no socket of any family. SIGPROF ends the CPU time;
    RLIMIT_CPU catches a process that ignores it.

    Args:
        memory_bytes: Address space of the process.
        cpu_seconds: User and system CPU time from now on.
    """
    seconds = int(cpu_seconds) + 2
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit_cpu(cpu_seconds)


def limit_cpu(seconds: float) -> None:
    """Let SIGPROF end this process after so much CPU time from now on."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _syscall(number: int, *arguments: object) -> int:
    return check(libc.syscall(ctypes.c_long(number), *arguments))


def check(result: int) -> int:
    """Return *result*, the result of a C library function.

    Raises:
        OSError: *result* is below zero.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
