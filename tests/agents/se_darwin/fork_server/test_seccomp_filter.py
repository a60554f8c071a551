"""The filter alone, in a process of its own, which cannot remove it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "call",
    [
        "shmget(0, 4096, 0o600)",
        "shmat(0, None, 0)",
        "msgget(0, 0o600)",
        "msgsnd(0, b'12345678', 0, 0)",
        "semget(0, 1, 0o600)",
        "semop(0, b'123456', 1)",
        "mq_open(b'/name', 0o102, 0o600, None)",
        "socket(1, 1, 0)",
        "socketpair(1, 1, 0, b'12345678')",
        "unshare(0x10000000)",
        "setns(0, 0)",
        "ptrace(0, 0, None, None)",
        "process_vm_readv(1, None, 0, None, 0, 0)",
        "memfd_create(b'name', 0)",
        "chmod(b'file', 0o600)",
        "fchmodat(-100, b'file', 0o600, 0)",
        "chown(b'file', -1, -1)",
        "fchownat(-100, b'file', -1, -1, 0)",
        "utimensat(-100, b'file', None, 0)",
        "setxattr(b'file', b'user.a', b'', 0, 0)",
        "removexattr(b'file', b'user.a')",
        "prlimit(1, 0, None, None)",
        "setpriority(0, 0, 0)",
        "sched_setaffinity(0, 8, b'12345678')",
        "syscall(452, -100, b'file', 0o600, 0)",  # fchmodat2
        "syscall(425, 1, None)",  # io_uring_setup
        "syscall(434, 1, 0)",  # pidfd_open
        "syscall(435, None, 0)",  # clone3
    ],
)
def test_the_filter_alone_refuses(call: str, run_confined: Callable[[str, str], str]) -> None:
    action = f"(libc.{call}, ctypes.get_errno())"
    assert run_confined("seccomp_filter.install_seccomp_filter", action) == "(-1, 1)"


def test_the_filter_leaves_ordinary_work_alone(run_confined: Callable[[str, str], str]) -> None:
    action = (
        "(os.waitpid(os.fork() or os._exit(0), 0)[1], os.pipe() and 'piped', "
        "__import__('resource').setrlimit(0, (9, 9)), __import__('resource').getrlimit(0))"
    )
    assert (
        run_confined("seccomp_filter.install_seccomp_filter", action)
        == "(0, 'piped', None, (9, 9))"
    )
