"""A candidate that tries to get out, by every way a real one might."""

PROBE_FUNCTION = "attempt_escapes"
PROBE_SOURCE = '''
import os
import socket
import threading

def attempt_escapes(canary, parent):
    """Names of the attempts that succeeded."""
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
        "it can truncate files of this user": lambda: os.truncate(canary, 0),
        "it can delete files of this user": lambda: os.unlink(canary),
        "it can signal the daemon": lambda: os.kill(parent, 0),
        "it can start programs": lambda: os.posix_spawn("/bin/true", ["true"], {}),
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
