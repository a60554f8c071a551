"""Tortures a real daemon: ``python -m tests.e2e.torture --seed N --rounds N``.

``--executor`` and ``--database`` name where its runs and records are; their servers are started.

Each round starts runs of small agents, disturbs them in one way that the seed decides, waits until
they have ended, and checks the invariants against the store, the files and the process table. A
violation is printed with the command that repeats it, and its home is kept.

1,096 rounds before the 550 without a violation had six, and no run was lost or doubled. Slurm's
controller, killed, gave job numbers again (3); the API server of the tests dropped a request after
a power cut (1); a cancelled run succeeded because its worker took its last 0.2 s of steps before
the command reached it (1); a held worker was silent for longer than a limit of 6 s, now 10 s (1).
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.e2e.torture.backups import BackupTaker
from tests.e2e.torture.catalogue import FAULTS, Fault
from tests.e2e.torture.invariants import Snapshot, Weights, check_round, weights_of
from tests.e2e.torture.round import SEEDS, Round
from tests.e2e.torture.service import AGENTS, ALIKE, WITH_PARTS, Reaper, Service
from tests.e2e.torture.stage import DATABASES, EXECUTORS, Stage, missing, open_stage
from tests.preloaded import preload

FAULT_MODULES = ("files", "jobs", "plugins", "postgres", "processes", "settings", "store")
ROUNDS_PER_HOME = 25
HOME_BYTES = 96 << 20
SHARED_BYTES = 64 << 20
_NEW_MOUNT_NAMESPACE = 0x20000  # unshare(2)
_TO_MOUNT, _TO_FREEZE = ("mount", "umount"), ("mkfs.ext4", "fsfreeze")


class Torture:
    """Plays rounds on one home after the other."""

    def __init__(
        self, options: argparse.Namespace, faults: list[Fault], stage: Stage, *, own_disk: bool
    ) -> None:
        self._options, self._faults, self._stage = options, faults, stage
        self._own_disk = own_disk
        self._reaper = Reaper()
        self._service: Service | None = None
        self._backups = BackupTaker(lambda: self._service)
        self._homes = 0
        self._known: set[str] = set()
        self._references: dict[tuple[bool, int, str], Weights] = {}
        self.played: Counter[str] = Counter()
        self.violations: list[str] = []

    def plan(self, number: int) -> tuple[Fault, random.Random]:
        """The fault of round *number*, and what decides its details; both from the seed alone."""
        seed = self._options.seed
        cycle, place = divmod(number, len(self._faults))
        order = list(self._faults)
        random.Random(f"{seed}/cycle {cycle}").shuffle(order)
        return order[place], random.Random(f"{seed}/round {number}")

    def run(self) -> int:
        """Play all rounds; return the number of violations."""
        begun = time.monotonic()
        first = self._options.first
        if self._options.backups:
            self._backups.start()
        try:
            for number in range(first, first + self._options.rounds):
                fault, rng = self.plan(number)
                forked = fault.forked and self._options.real_workers
                if forked or (fault.disk and not self._own_disk):
                    self.played[f"{fault.name} (left out)"] += 1
                else:
                    self._play(number, fault, rng)
        finally:  # also when interrupted
            if self._options.backups:
                self._backups.stop()
                taken, refused = self._backups.taken, self._backups.refused
                print(f"{taken} backups put back and compared, {refused} refused")
                self.violations += self._backups.problems
            self._end_home(keep=False)
            self._summarise(time.monotonic() - begun)
        return len(self.violations)

    def _play(self, number: int, fault: Fault, rng: random.Random) -> None:
        begun = time.monotonic()
        problems: list[str] = []
        played: Round | None = None
        try:
            service = self._ready_service(number)
            played = Round(service, rng, self._options.agent)
            before = Snapshot(service)
            played.start(agent=played.neighbour)
            fault.play(played)
            for run in played.runs:
                (run.plan / "hurry").touch()
            played.until_ended()
            with self._backups.idle:  # its process is one that a round may not leave
                problems = check_round(played, self._references, before, self._known)
            self._known |= {run.id for run in played.runs}
        except Exception as error:  # a violation, too
            traceback.print_exc()
            problems = [*(played.problems if played else []), f"{type(error).__name__}: {error}"]
        self.played[fault.name] += 1
        facts = "; ".join(played.facts) if played else ""
        seconds = time.monotonic() - begun
        print(f"round {number:4d} {seconds:5.1f} s  {fault.name}: {facts}", flush=True)
        if problems:
            self._report(number, fault, problems)

    def _report(self, number: int, fault: Fault, problems: list[str]) -> None:
        options = self._options
        self.violations.append(f"round {number} ({fault.name}): {problems[0][:300]}")
        print(f"VIOLATION in round {number} ({fault.name}):")
        for problem in problems:
            print(f"  {problem}")
        again = "".join(f" --kind '{name}'" for name in options.kind or ())
        again += " --quick" * options.quick + " --real-workers" * options.real_workers
        again += f" --agent {options.agent}" * bool(options.agent)
        again += f" --executor {options.executor} --database {options.database}"
        print(
            f"  repeat: python -m tests.e2e.torture --seed {options.seed} --first {number} "
            f"--rounds 1{again}",
            flush=True,
        )
        if (kept := self._end_home(keep=True)) is not None:
            print(f"  home, plans and log: {kept}", flush=True)

    def _ready_service(self, number: int) -> Service:
        """The service of this round: a new home after some rounds or a violation."""
        if self._service is not None and (number % ROUNDS_PER_HOME == 0):
            self._end_home(keep=False)
        if self._service is not None:
            self._service.wait_for_settings()
        else:
            self._homes += 1
            folder = self._stage.homes / f"{self._homes}"
            self._service = Service(folder, self._reaper, self._stage)
            self._service.start()
            self._wait_for_first_runs(self._service)
        return self._service

    def _wait_for_first_runs(self, service: Service) -> None:
        """Wait for the run that is due at once, and at first for undisturbed ones.

        Their weights, by seed and precision, are what disturbed runs are compared with.
        """
        wanted: dict[str, tuple[bool, int, str]] = {}
        if not self._references:
            keys = [(False, seed, precision) for precision in ("fp16", "fp32") for seed in SEEDS]
            agents = sorted(ALIKE, key=lambda name: ALIKE[name])
            if self._options.agent == WITH_PARTS:
                keys += [(True, seed, AGENTS[WITH_PARTS]) for seed in SEEDS]
                agents += [WITH_PARTS] * len(SEEDS)
            for agent, key in zip(agents, keys, strict=True):
                wanted[service.enqueue(agent, key[1])] = key
        expected = len(wanted) + 1
        service.wait(
            lambda: [row.state for row in service.rows()] == ["succeeded"] * expected,
            "undisturbed runs",
        )
        for run_id, key in wanted.items():
            self._references[key] = weights_of(service.home / "runs" / run_id)
        self._known = {row.id for row in service.rows()}

    def _end_home(self, *, keep: bool) -> Path | None:
        service, self._service = self._service, None
        if service is None:
            return None
        with suppress(Exception):
            service.kill_everything()
        kept = None
        if keep:
            kept = Path(tempfile.mkdtemp(prefix="violation-", dir=self._options.keep))
            shutil.copytree(
                service.folder,
                kept,
                symlinks=True,
                dirs_exist_ok=True,
                ignore=lambda folder, names: [n for n in names if _is_special(Path(folder, n))],
            )
        shutil.rmtree(service.folder, ignore_errors=True)
        return kept

    @property
    def rounds(self) -> int:
        """Rounds that were played."""
        return sum(n for name, n in self.played.items() if not name.endswith("(left out)"))

    def _summarise(self, seconds: float) -> None:
        rounds = self.rounds
        kinds = sum(not name.endswith("(left out)") for name in self.played)
        print("\nrounds by kind:")
        for name, count in sorted(self.played.items()):
            print(f"  {count:4d}  {name}")
        for violation in self.violations:
            print(f"violation: {violation}")
        print(
            f"{rounds} rounds of {kinds} kinds in {seconds:.0f} s "
            f"({seconds / max(rounds, 1):.1f} s each), seed {self._options.seed}, "
            f"executor {self._options.executor}, database {self._options.database}: "
            f"{len(self.violations)} violations",
            flush=True,
        )


def _is_special(path: Path) -> bool:
    return not (path.is_symlink() or path.is_file() or path.is_dir()) or path.name == ".ballast"


def _own_file_system(folder: Path) -> bool:
    """Mount a small file system at *folder* that vanishes with this process; root only.

    False where that, or a program for it, is missing: kinds that need it are left out.
    """
    if not all(map(shutil.which, _TO_MOUNT)):
        return False
    if ctypes.CDLL(None).unshare(_NEW_MOUNT_NAMESPACE):
        return False
    private = subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
    size = f"size={HOME_BYTES}"
    command = ["mount", "-t", "tmpfs", "-o", size, "torture", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    return not (private.returncode or mounted.returncode)


def _shared_folder(folder: Path) -> bool:
    """Mount a small file system at *folder* that can be frozen, within our own namespace."""
    if not all(map(shutil.which, _TO_FREEZE)):
        return False
    image = folder.with_name("shared.img")
    with image.open("wb") as file:
        file.truncate(SHARED_BYTES)
    make = ["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)]
    mount = ["mount", "-o", "loop,noatime", str(image), str(folder)]
    return all(
        subprocess.run(command, check=False, capture_output=True).returncode == 0
        for command in (make, mount)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides every fault and its details")
    parser.add_argument("--rounds", type=int, default=50, help="number of rounds to play")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--executor", default="local", choices=EXECUTORS, help="where runs are")
    parser.add_argument("--database", default="sqlite", choices=DATABASES, help="of the daemon")
    parser.add_argument("--agent", choices=AGENTS, help="the victim of every round")
    parser.add_argument("--kind", action="append", help="play only this kind; may be repeated")
    parser.add_argument("--quick", action="store_true", help="only kinds that take few seconds")
    parser.add_argument(
        "--real-workers",
        action="store_true",
        help="start daemon and workers as in production, instead of forking them",
    )
    parser.add_argument("--backups", action="store_true", help="take one each second meanwhile")
    parser.add_argument("--no-mount", action="store_true", help="leave out full disks")
    parser.add_argument("--keep", default=None, help="folder for homes with a violation")
    parser.add_argument("--list", action="store_true", help="list the kinds and exit")
    return parser


def _kinds(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Fault]:
    """The kinds to play, in an order that the seed does not decide."""
    for module in FAULT_MODULES:
        importlib.import_module(f"tests.e2e.torture.faults.{module}")
    faults = [fault for _, fault in sorted(FAULTS.items())]
    faults = [fault for fault in faults if fault.is_for(options.executor, options.database)]
    if options.list:
        print("\n".join(fault.name for fault in faults))
        parser.exit()
    faults = [fault for fault in faults if fault.quick or not options.quick]
    if options.kind:
        unknown = set(options.kind) - {fault.name for fault in faults}
        if unknown:
            parser.error(f"unknown kinds: {', '.join(sorted(unknown))}; see --list")
        faults = [FAULTS[name] for name in options.kind]
    return faults


def main() -> None:
    """Read the options, play the rounds; exit with 1 if there was a violation."""
    parser = _parser()
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1: without a round nothing is shown")
    try:
        Path(options.keep or ".").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--keep: {error}")
    os.environ["PATH"] += f"{os.pathsep}/usr/sbin"  # mkfs.ext4, fsfreeze and Slurm's daemons
    faults = _kinds(options, parser)
    if lacks := missing(options.executor, options.database):
        parser.error(lacks)
    mounts = os.geteuid() == 0 and not options.no_mount
    if all(fault.disk for fault in faults) and not mounts:
        parser.error("all of these kinds need a disk of their own: run as root, without --no-mount")
    preload()
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    own_disk = mounted = mounts and _own_file_system(folder)
    try:
        where = (options.executor, options.database, folder)
        (folder / "homes").mkdir()
        if own_disk and options.executor != "local":
            own_disk = _shared_folder(folder / "homes")
        with open_stage(*where, real=options.real_workers) as stage:
            torture = Torture(options, faults, stage, own_disk=own_disk)
            violations = torture.run()
    finally:
        if mounted:
            command = ["umount", "--recursive", "--lazy", str(folder)]
            subprocess.run(command, check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
    if not torture.rounds:
        sys.exit("no round was played: every kind that was drawn was left out")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
