"""A candidate that tries every known way out of the sandbox."""

PROBE_FUNCTION = "attempt_escapes"
PROBE_SOURCE = '''
import ctypes
import os
import resource
import socket
import threading

ADD_KEY = 248 if os.uname().machine == "x86_64" else 217
NEW_USER = 0x10000000
libc = ctypes.CDLL(None)

def made(identifier, remove=None):
    if identifier < 0:
        raise OSError
    if remove is not None:
        remove(identifier, 0, None)

def attempt_escapes(canary, parent):
    """Return the names of the attempts that succeeded."""
    attempts = {
        "it can fork": os.fork,
        "it can start threads": threading.Thread(target=int).start,
        "it can open sockets": socket.socket,
        "it can read files": lambda: open(canary),
        "it can write files": lambda: open("written", "w"),
        "it can write files anywhere": lambda: open(canary + "-written", "w"),
        "it can make folders": lambda: os.mkdir(canary + "-folder"),
        "it can rename files of this user": lambda: os.rename(canary, canary + "-renamed"),
        "it can change modes of files of this user": lambda: os.chmod(canary, 0o600),
        "it can change times of files of this user": lambda: os.utime(canary, (0, 0)),
        "it can mark files of this user": lambda: os.setxattr(canary, "user.probe", b""),
        "it can truncate files of this user": lambda: os.truncate(canary, 0),
        "it can delete files of this user": lambda: os.unlink(canary),
        "it can signal the daemon": lambda: os.kill(parent, 0),
        "it can limit the daemon": lambda: resource.prlimit(parent, resource.RLIMIT_CORE),
        "it can slow the daemon down": lambda: os.sched_setaffinity(
            parent, os.sched_getaffinity(parent)
        ),
        "it can start programs": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "it can keep memory": lambda: made(libc.shmget(0, 4096, 0o600), libc.shmctl),
        "it can leave messages": lambda: made(libc.msgget(0, 0o600), libc.msgctl),
        "it can keep semaphores": lambda: made(libc.semget(0, 1, 0o600), libc.semctl),
        "it can keep keys": lambda: made(libc.syscall(ADD_KEY, b"user", b"probe", b"x", 1, -2)),
        "it can enter namespaces": lambda: made(libc.unshare(NEW_USER)),
    }
    escaped = []
    for name, attempt in attempts.items():
        try:
            outcome = attempt()
        except (OSError, RuntimeError):
            continue
        if name == "it can fork" and outcome == 0:
            os._exit(0)
        escaped.append(name)
    return escaped
'''
