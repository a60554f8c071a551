"""A candidate that tries every known way out of the sandbox."""

CHECK_FUNCTION = "attempt_escapes"
CHECK_SOURCE = '''
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

def follow_link(canary, folder):
    link = os.path.join(folder, "link")
    os.symlink(canary, link)
    open(link)

def look_into(folder, but):
    for name in ("", "0", "1", "2", "3"):
        path = os.path.join(folder, name)
        if path != but:
            try:
                return os.listdir(path)
            except OSError:
                continue
    raise OSError

def fill(folder, size):
    for number in range(64):
        with open(os.path.join(folder, str(number)), "wb") as file:
            file.write(bytes(size))

def attempt_escapes(canary, parent, has_folder=False):
    """Return the names of the attempts that succeeded; the working folder may be private."""
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
        "it can mark files of this user": lambda: os.setxattr(canary, "user.check", b""),
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
        "it can keep keys": lambda: made(libc.syscall(ADD_KEY, b"user", b"check", b"x", 1, -2)),
        "it can enter namespaces": lambda: made(libc.unshare(NEW_USER)),
    }
    if has_folder:
        del attempts["it can write files"]  # relative to its own folder
        folder = os.getcwd()
        others = os.path.dirname(folder)
        attempts |= {
            "it can write files elsewhere": lambda: open(os.path.join(others, "written"), "w"),
            "it can see folders of others": lambda: look_into(others, but=folder),
            "it can follow links out of its folder": lambda: follow_link(canary, folder),
            "it can link files into its folder": lambda: os.link(canary, folder + "/hard"),
            "it can move files into its folder": lambda: os.rename(canary, folder + "/moved"),
            "it can make pipes that others find": lambda: os.mkfifo(folder + "/pipe"),
            "it can read what the kernel tells": lambda: os.listdir("/proc"),
            "it can open devices": lambda: open("/dev/null", "w"),
            "it can write without end": lambda: fill(folder, 1 << 20),
            "it can write a large file": lambda: fill(folder, 1 << 25),
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
