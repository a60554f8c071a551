"""Confine this process irrevocably: namespaces, user, Landlock, resource limits. Linux only.

Every layer is attempted and reported. Whether they hold together is tested by the escape check of
`agents.se_darwin.sandbox`, not assumed. Numbers are those of the kernel's stable ABI.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
import struct
from collections.abc import Sequence
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWIPC = 0x0002_0000, 0x0800_0000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x4_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_SYS_MOUNT_SETATTR, _SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_RESTRICT = 442, 444, 446
_SYS_LANDLOCK_ADD_RULE, _LANDLOCK_PATH_BENEATH = 445, 1
# Write, read, list and remove files and folders, make both and symbolic links, rename, truncate;
# not: execute, make devices, sockets or pipes.
_USE_FOLDER = 0b0111_0001_1011_1110
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
        make_read_only(b"/", recursive=True)
    except OSError as error:
        return f"refused: {error.strerror}"
    return "on"


def make_read_only(path: bytes, *, recursive: bool = False) -> None:
    """Make the mount at *path* read-only.

    Raises:
        OSError: The kernel refuses it.
    """
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attributes), 32)


def mount_memory(path: bytes, options: bytes) -> None:
    """Mount a file system in memory on *path*, without devices and programs.

    Raises:
        OSError: The kernel refuses it.
    """
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    check(libc.mount(b"tmpfs", path, b"tmpfs", flags, options))


def user_after_drop() -> tuple[int, int]:
    """User and group that this process has after `drop_user`."""
    if os.geteuid() != 0:
        return os.getuid(), os.getgid()
    try:
        return pwd.getpwnam("nobody").pw_uid, _NOBODY
    except KeyError:
        return _NOBODY, _NOBODY


def drop_user() -> str:
    """Change to the user nobody if this is root, and drop every capability.

    Returns:
        ``on``, ``not root``, or ``refused: `` and the reason.
    """
    outcome = "not root"
    try:
        if os.geteuid() == 0:
            user, group = user_after_drop()
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
            outcome = "on"
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        check(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))
    except OSError as error:
        return f"refused: {error.strerror}"
    return outcome


def enter_landlock(folders: Sequence[str] = ()) -> str:
    """Deny every path, every TCP port, and signals and abstract sockets to the outside.

    Modules are imported before, so no file needs to be read afterwards.

    Args:
        folders: Folders below which files may be used.

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
        for folder in folders:
            descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            rule = struct.pack("=Qi", _USE_FOLDER & rules[0], descriptor)
            _syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
            os.close(descriptor)
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


def limit_resources(
    *, memory_bytes: int, cpu_seconds: float, descriptors: int = 0, file_bytes: int = 0
) -> None:
    """Forbid new processes and threads; cap memory, CPU time, descriptors and file contents.

    Without descriptors there is no ``open`` and no socket of any family. SIGPROF ends the CPU time;
    RLIMIT_CPU catches a process that ignores it.

    Args:
        memory_bytes: Address space of the process.
        cpu_seconds: User and system CPU time from now on.
        descriptors: Number of a descriptor is below that; 0 unless it has a private folder.
        file_bytes: Largest size of a file that it writes.
    """
    seconds = int(cpu_seconds) + 2
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, descriptors),
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
