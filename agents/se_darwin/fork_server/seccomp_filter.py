"""Install a seccomp filter against system calls whose effects outlive or escape a candidate.

Rlimits, namespaces and Landlock do not cover System V objects and keys: memory that outlives its
process, and channels between candidates. Landlock does not cover modes, owners, times and
attributes of files, nor limits and priorities of other processes; only namespaces hide those. The
kernel runs the filter at each system call; a process cannot remove it, and its children inherit
it. Numbers are those of the kernel's stable ABI.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from .confinement import check, libc

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in the kernel's `seccomp_data`
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000 | errno.EPERM
_X32 = 0x4000_0000  # the bit of x86-64's second set of numbers
_NEW_NAMESPACES = 0x7E02_0000  # every CLONE_NEW* flag that `clone` takes

# Machine -> audit architecture, numbers of `clone` and `prlimit64`, numbers of forbidden calls.
_MACHINES: dict[str, tuple[int, int, int, tuple[range, ...]]] = {
    "x86_64": (
        0xC000_003E,
        56,
        302,
        (
            range(29, 32),  # shmget, shmat, shmctl
            range(64, 72),  # semget, semop, semctl, shmdt, msgget, msgsnd, msgrcv, msgctl
            range(220, 221),  # semtimedop
            range(240, 246),  # mq_*
            range(248, 251),  # add_key, request_key, keyctl
            range(90, 95),  # chmod, fchmod, chown, fchown, lchown
            range(132, 133),  # utime
            range(188, 191),  # setxattr, lsetxattr, fsetxattr
            range(197, 200),  # removexattr, lremovexattr, fremovexattr
            range(235, 236),  # utimes
            range(260, 262),  # fchownat, futimesat
            range(268, 269),  # fchmodat
            range(280, 281),  # utimensat
            range(141, 143),  # setpriority, sched_setparam
            range(144, 145),  # sched_setscheduler
            range(203, 204),  # sched_setaffinity
            range(251, 252),  # ioprio_set
            range(256, 257),  # migrate_pages
            range(279, 280),  # move_pages
            range(314, 315),  # sched_setattr
            range(41, 42),  # socket
            range(53, 54),  # socketpair
            range(101, 102),  # ptrace
            range(272, 273),  # unshare
            range(253, 256),  # inotify_*
            range(294, 295),  # inotify_init1
            range(298, 299),  # perf_event_open
            range(300, 302),  # fanotify_*
            range(303, 305),  # name_to_handle_at, open_by_handle_at
            range(308, 309),  # setns
            range(310, 313),  # process_vm_readv, process_vm_writev, kcmp
            range(319, 320),  # memfd_create
            range(321, 322),  # bpf
            range(323, 324),  # userfaultfd
        ),
    ),
    "aarch64": (
        0xC000_00B7,
        220,
        261,
        (
            range(5, 8),  # setxattr, lsetxattr, fsetxattr
            range(14, 17),  # removexattr, lremovexattr, fremovexattr
            range(30, 31),  # ioprio_set
            range(52, 56),  # fchmod, fchmodat, fchownat, fchown
            range(88, 89),  # utimensat
            range(118, 120),  # sched_setparam, sched_setscheduler
            range(122, 123),  # sched_setaffinity
            range(140, 141),  # setpriority
            range(238, 240),  # migrate_pages, move_pages
            range(274, 275),  # sched_setattr
            range(180, 200),  # mq_*, msg*, sem*, shm*, socket, socketpair
            range(217, 220),  # add_key, request_key, keyctl
            range(26, 29),  # inotify_*
            range(97, 98),  # unshare
            range(117, 118),  # ptrace
            range(241, 242),  # perf_event_open
            range(262, 266),  # fanotify_*, name_to_handle_at, open_by_handle_at
            range(268, 269),  # setns
            range(270, 273),  # process_vm_readv, process_vm_writev, kcmp
            range(279, 281),  # memfd_create, bpf
            range(282, 283),  # userfaultfd
        ),
    ),
}
_EVERYWHERE = (
    # pidfd_send_signal, io_uring_*, new mounts, pidfd_open; clone3, whose flags it cannot read
    range(424, 436),
    range(438, 439),  # pidfd_getfd
    range(440, 441),  # process_madvise
    range(447, 448),  # memfd_secret
    range(452, 453),  # fchmodat2
    range(463, 464),  # setxattrat
    range(466, 467),  # removexattrat
)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_seccomp_filter() -> str:
    """Make the forbidden calls fail with EPERM in this process and its children, irrevocably.

    Returns:
        ``on``, or ``refused: `` and the reason.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        return f"refused: no list of system calls for {machine}"
    code = b"".join(_instructions(*_MACHINES[machine]))
    program = _Program(len(code) // 8, code)
    try:
        check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))
    except OSError as error:
        return f"refused: {error.strerror}"
    return "on"


def _instructions(
    abi: int, clone: int, prlimit: int, forbidden: tuple[range, ...]
) -> Iterator[bytes]:
    """Yield the filter's BPF instructions; a jump skips *if_true* or *if_false* instructions."""

    def do(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    yield do(_LOAD, _ARCHITECTURE)
    yield do(_EQUAL, abi, 1, 0)
    yield do(_RETURN, _KILL)  # for example a 32-bit call, whose numbers mean something else
    yield do(_LOAD, _NUMBER)
    yield do(_AT_LEAST, _X32, 0, 1)
    yield do(_RETURN, _REFUSE)
    for calls in (*forbidden, *_EVERYWHERE):
        yield do(_AT_LEAST, calls.start, 0, 2)
        yield do(_AT_LEAST, calls.stop, 1, 0)
        yield do(_RETURN, _REFUSE)
    yield do(_EQUAL, prlimit, 0, 3)
    yield do(_LOAD, _FIRST_ARGUMENT)
    yield do(_EQUAL, 0, 1, 0)  # 0 is the calling process; the number does not match `clone` either
    yield do(_RETURN, _REFUSE)
    yield do(_EQUAL, clone, 0, 3)
    yield do(_LOAD, _FIRST_ARGUMENT)
    yield do(_ANY_BIT, _NEW_NAMESPACES, 0, 1)
    yield do(_RETURN, _REFUSE)
    yield do(_RETURN, _ALLOW)
