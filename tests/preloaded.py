"""Daemons, workers, probes and ranks forked from a process that has imported torch: that is slow.

Each runs the code that ``genesis-fp16``, `python -m MODULE` or `python -P -c CODE` would run, with
its own arguments, environment, working folder, session and file descriptors. Workers and
probes are children of the daemon that starts them, ranks of their torchrun. It differs from
production in this only: modules are imported already, so a start takes 0.1 s, and the command line
in the process table is that of the process forked.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import psutil

from genesis_fp16.worker.collector_pause import collector_paused

# What starts the ranks has its own name for `subprocess.Popen`.
_TORCHRUN = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
MODULES = (
    "agents.se_darwin_agent",
    "alembic.command",
    "alembic.script",
    "genesis_fp16.api.app",
    "genesis_fp16.api.server",
    "genesis_fp16.cli.app",
    "genesis_fp16.daemon.daemon",
    "genesis_fp16.plugins.probe.messages",
    "genesis_fp16.worker.attempt_process",
    "infrastructure.training",
    "infrastructure.training.diagnostics.phase_clock",
    "infrastructure.world_model_agent.publication",
    _TORCHRUN,
)
OF_POLICIES = (
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "infrastructure.policy.models",
)
PROGRAM = "genesis-fp16"
CODE = "-c"
# As code for ``python -P -c``: run a file with its arguments, as ``python FILE`` would.
RUN_FILE = """
import os, runpy, sys
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
API = "genesis_fp16.api"
GPU_SECTION = "benchmarks.gpu.section"
GROUP = "genesis_fp16.worker.group"
LAUNCHER = "genesis_fp16.worker.remote"
STANDIN = "tests.genesis_fp16.standin_worker"
SCENARIOS = "tests.infrastructure.training.distributed.scenarios"
SWEEP = "tests.infrastructure.precision_lab.sweep.sweep_process"
TORTURE = "tests.e2e.torture"
PRELOADED = (  # as named on a command line
    "agents.se_darwin.command.child",
    GPU_SECTION,
    "benchmarks.gpu.sections.ranks",
    "genesis_fp16.plugins.probe",
    "genesis_fp16.predictor",
    "genesis_fp16.worker",
    "genesis_fp16.worker.spare",
    GROUP,
    "infrastructure.precision_lab.sweep.worker",
    SCENARIOS,
    STANDIN,
    SWEEP,
    TORTURE,
    "torch.distributed.run",
)
_PARENTS = (PROGRAM, API, GROUP, GPU_SECTION, SWEEP, "torch.distributed.run")
_PYTHON = Path(sys.executable)
_ROOT = Path(__file__).parents[1]
_CONTEXT = multiprocessing.get_context("forkserver")
_COLLAPSE, _HUGE_PAGE = 25, 2 << 20  # madvise(2)
_PARENT_DEATH_SIGNAL, _SET_SUBREAPER, _GET_SUBREAPER = 1, 36, 37  # prctl(2)
_FIRST_HIGH_DESCRIPTOR = 200


def preload() -> None:
    """Import what daemons and workers need; call it once, before `fork_daemon`."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with collector_paused():
        for module in MODULES:
            importlib.import_module(module)
    use_huge_pages()


def use_huge_pages() -> None:
    """Move this process's memory into huge pages, where Linux can (6.1 and newer).

    A fork copies an entry of the page table for each page, and an exit removes it: that takes a
    process of 300 MB some 20 ms of system time, and 5 ms where pages are huge.
    """
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, file, *_ = line.split()
        if (access, file) == ("rw-p", "0"):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            first, last = -(-begin // _HUGE_PAGE), end // _HUGE_PAGE
            size = ctypes.c_size_t((last - first) * _HUGE_PAGE)
            if size.value > 0:
                madvise(ctypes.c_void_p(first * _HUGE_PAGE), size, _COLLAPSE)


def run_program() -> NoReturn:
    """Be ``genesis-fp16`` with this process's arguments, and fork what it starts."""
    preload()
    _fork_children()
    from genesis_fp16.cli import main

    _exit_with(main)


def start_server() -> None:
    """Start the process from which `ForkedPopen` and test workers are forked, unless it runs."""
    _CONTEXT.set_forkserver_preload(["tests.server_of_forks"])
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_pid is None:
        with chdir(_ROOT):  # elsewhere it would not find that module, and go on without a word
            multiprocessing.forkserver.ensure_running()


def adopt_orphans(adopt: bool = True) -> bool:
    """Become the parent of descendants whose parent ends, or no longer; whether it was so."""
    before = ctypes.c_int()
    ctypes.CDLL(None).prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    ctypes.CDLL(None).prctl(_SET_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def fork_daemon(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
    commit_fuse: Path | None = None,
) -> int:
    """Start ``genesis-fp16 ARGUMENTS`` in *folder*; return its pid.

    Its workers are forked too. If the file *commit_fuse* appears with a number N in it, the
    process is killed at its Nth commit from then on: before it if N is odd, else after it.
    """
    log = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(log)
        os.close(null)
        return pid
    try:
        _die_with(parent)
        os.setsid()
        _become((PROGRAM, *arguments), environment, folder, {0: null, 1: log, 2: log})
        _fork_children()
        if commit_fuse is not None:
            _arm(commit_fuse)
        from genesis_fp16.cli import main

        _exit_with(main)
    finally:
        os._exit(70)


def output_of(process: psutil.Process) -> Path | None:
    """File or pipe that *process* writes its standard output to; None if it has ended.

    A process that was forked has another's command line and environment in the process table.
    """
    try:
        return Path(f"/proc/{process.pid}/fd/1").readlink()
    except OSError:
        return None


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


def _fork_children() -> None:
    """Fork what this process starts from now on."""
    ForkedPopen.base = _Base(from_server=False)
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    importlib.import_module(_TORCHRUN).Popen = ForkedPopen  # type: ignore[attr-defined]


class _Base:
    """A process that forks off further children of this process on request.

    Forked from this process, or from the server if this process has not imported what they need.
    """

    def __init__(self, *, from_server: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._lock = threading.Lock()
        if from_server:
            start_server()
            _CONTEXT.Process(target=_serve_forks, args=(theirs, None), daemon=True).start()
        elif not os.fork():
            ours.close()
            _serve_forks(theirs, parent)
        theirs.close()
        self._requests = ours

    def forget(self) -> None:
        """Never close the descriptor: in a process that was forked its number may be another's."""
        self._requests.detach()

    def spawn(self, request: Mapping[str, object], descriptors: Mapping[int, int]) -> int:
        """Fork a process that has *descriptors* (theirs -> ours); return its pid."""
        with self._lock:
            adopting = adopt_orphans()  # of the process that forks it and ends
            message = json.dumps({**request, "descriptors": list(descriptors)}).encode()
            socket.send_fds(self._requests, [message], list(descriptors.values()))
            pid = int(self._requests.recv(64))
            while psutil.Process(pid).ppid() != os.getpid():
                time.sleep(0.0005)
            adopt_orphans(adopting)
        return pid


def _serve_forks(requests: socket.socket, parent: int | None) -> NoReturn:
    _die_with(parent or os.getppid())
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # this is no process of whoever reads it
    while True:
        message, received, _, _ = socket.recv_fds(requests, 1 << 20, 64)
        if not message:
            os._exit(0)
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            for descriptor in received:
                os.close(descriptor)
            continue
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == middle:  # until the process that asked is the parent
            time.sleep(0.0005)
        _work(json.loads(message), received, requests)


def _work(request: dict[str, Any], received: list[int], requests: socket.socket) -> NoReturn:
    try:
        if request["new_session"]:
            os.setsid()
        requests.send(str(os.getpid()).encode())  # now its session may be signalled
        descriptors = dict(zip(request["descriptors"], received, strict=True))
        arguments = (request["module"], *request["arguments"])
        _become(arguments, request["environment"], Path(request["folder"]), descriptors)
        if request["in_folder"]:
            sys.path.insert(0, request["folder"])
        if request["forks"]:
            _fork_children()
        if request["module"] == PROGRAM:
            from genesis_fp16.cli import main

            _exit_with(main)
        if request["module"] == CODE:
            code = sys.argv.pop(1)
            _exit_with(lambda: exec(code, {"__name__": "__main__"}))
        _exit_with(lambda: runpy.run_module(request["module"], run_name="__main__", alter_sys=True))
    finally:
        os._exit(70)


def _become(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    descriptors: Mapping[int, int],
) -> None:
    """Take on another program's arguments, environment, folder and *descriptors*, and no other."""
    if ForkedPopen.base is not None:  # of the process that this one was forked from
        ForkedPopen.base.forget()
        ForkedPopen.base = None
    high = {}
    for number, (theirs, ours) in enumerate(descriptors.items()):
        high[theirs] = _FIRST_HIGH_DESCRIPTOR + number
        os.dup2(ours, high[theirs])
    os.closerange(3, _FIRST_HIGH_DESCRIPTOR)
    for theirs, ours in high.items():
        os.dup2(ours, theirs)
        os.close(ours)
    # What was forked may have had others, as pytest does: their descriptors are closed, and a
    # socket of this program may get the same number. The tracker would close that.
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import may have asked for it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == 2 else signal.SIG_DFL)
    sys.argv = list(arguments)
    sys.path[:] = [path for path in sys.path if _is_installed(path)]
    sys.path[:0] = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    importlib.invalidate_caches()


def _is_installed(path: str) -> bool:
    """Whether a new interpreter has *path*; a test may have added others before the fork."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return (path != "" and not Path(path).is_absolute()) or any(
        Path(path).is_relative_to(prefix) for prefix in prefixes
    )


def _exit_with(program: Any) -> NoReturn:
    """Run *program* and end this process as Python would."""
    code = 0
    try:
        program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(error.code + "\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


PlainPopen = subprocess.Popen


class ForkedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Forks the program, its *modules* and ``python -P -c`` from the base; the rest starts.

    Modules with or without ``-P`` and ``-u``. What it forks does so in turn if it is one of
    *parents*. A drop-in replacement for `subprocess.Popen`.
    """

    base: _Base | None = None
    modules: tuple[str, ...] = PRELOADED
    parents: tuple[str, ...] = _PARENTS

    @classmethod
    def start_base(cls) -> _Base:
        """Start the process from which the others are forked, unless it runs."""
        if ForkedPopen.base is None:
            ForkedPopen.base = _Base(from_server=True)
        return ForkedPopen.base

    def _execute_child(self, args: Any, *rest: Any) -> None:
        names = PlainPopen._execute_child.__code__.co_varnames  # type: ignore[attr-defined]
        given = dict(zip(names[2:], rest, strict=False))
        command = list(args) if isinstance(args, list | tuple) else [args]
        options = [*takewhile(("-P", "-u").__contains__, command[1:])]
        what = command[1 + len(options) :]
        is_python = command[0] == str(_PYTHON)
        if Path(os.fsdecode(command[0])) == _PYTHON.with_name(PROGRAM):
            module, arguments = PROGRAM, command[1:]
        elif is_python and what[:1] == ["-m"] and what[1] in self.modules:
            module, arguments = what[1], what[2:]
        elif is_python and what[:1] == [CODE] and options == ["-P"]:
            module, arguments = CODE, what[1:]
        else:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        descriptors = {
            0: given["p2cread"] if given["p2cread"] != -1 else 0,
            1: given["c2pwrite"] if given["c2pwrite"] != -1 else 1,
            2: given["errwrite"] if given["errwrite"] != -1 else 2,
            **{each: each for each in given["pass_fds"]},
        }
        environment = os.environ if given["env"] is None else given["env"]
        request = {
            "module": module,
            "arguments": [os.fsdecode(each) for each in arguments],
            "environment": dict(environment),
            "folder": str(given["cwd"] or Path.cwd()),
            "in_folder": is_python and "-P" not in options,
            "new_session": given["start_new_session"],
            "forks": module in self.parents,
        }
        self.pid = self.start_base().spawn(request, descriptors)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[each] for each in pipes))  # type: ignore[attr-defined]


def _arm(fuse: Path) -> None:
    """Have this process killed at a commit, once the file *fuse* says at which."""
    from sqlalchemy import Engine, event

    left: list[int] = []
    before: list[bool] = []

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @event.listens_for(Engine, "commit")
    def _commit(_connection: object) -> None:
        if not left and fuse.exists():
            left.append(int(fuse.read_text()))
            before.append(left[0] % 2 == 1)
        if left:
            left[0] -= 1
            if left[0] == 0 and before[0]:
                die()

    @event.listens_for(Engine, "begin")  # the next transaction: the one before is on the disk
    def _begin(_connection: object) -> None:
        if left and left[0] <= 0:
            die()
