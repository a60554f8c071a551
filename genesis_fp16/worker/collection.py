"""The data phase of a worker: collected once for each run, then shared by all its attempts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from genesis_fp16.worker.channel import ProgressReporter
from infrastructure.agent_contract import Agent, RunContext, Transition
from infrastructure.decisions import take_in
from infrastructure.decisions.log import logs_of
from infrastructure.files import json_text, read_json, write_atomically
from infrastructure.trajectories import BufferSnapshot, BufferView, ReplayBuffer
from infrastructure.trajectories.compaction import compact
from infrastructure.trajectories.parquet_segments import ParquetError

SNAPSHOT_FILE = "snapshot.json"  # in the run's folder
_MOST_SNAPSHOT_BYTES = 1 << 26
_MOST_SKIPPED_SHOWN = 20
Kind = TypeVar("Kind")


class Collection:
    """Records what an agent collects, within its budget.

    Args:
        progress: Receives the number of transitions, unless the agent reports its own progress.
        begin: Called before anything is collected.
        poll: Called after each transition; an exception that it raises ends the collection.
    """

    def __init__(
        self,
        agent: Agent,
        context: RunContext,
        progress: ProgressReporter,
        begin: Callable[[], None],
        poll: Callable[[], object],
    ) -> None:
        self._agent, self._context, self._progress = agent, context, progress
        self._begin, self._poll = begin, poll
        self._views: dict[Path, BufferView] = {}

    def snapshot(self, folder: Path) -> BufferSnapshot:
        """Collect into *folder*, unless an earlier attempt has: all train on the same data.

        The snapshot is the part of the replay buffer in *folder* that this run trains on.
        """
        earlier = self._earlier_snapshot()
        if earlier is not None:
            return earlier
        self._begin()
        buffer = self.buffer(folder)
        with closing(buffer):  # even after an error, recorded transitions reach the disk
            self._collect(buffer)
        self._take_in_decisions(folder)
        self._progress.flush()
        snapshot = buffer.snapshot()
        write_atomically(self._context.run_folder / SNAPSHOT_FILE, json_text(snapshot.to_json()))
        return snapshot

    def buffer(self, folder: Path) -> ReplayBuffer:
        """The replay buffer in *folder*; it logs the records that it skips."""
        return ReplayBuffer(folder, on_skip=self._log_skipped)

    def read(self, folder: Path, snapshot: BufferSnapshot) -> BufferView:
        """The transitions of *snapshot*; for equal arguments the same view, which may know more."""
        view = self._views.get(folder)
        if view is None or view.snapshot != snapshot:
            view = self._views[folder] = self.buffer(folder).read(snapshot)
        return view

    def compact(self, folder: Path, poll: Callable[[], object]) -> None:
        """Move closed segments in *folder* to Parquet; if that fails they stay, with a warning.

        Args:
            poll: Called often; an exception that it raises ends the work, which changes nothing.
        """
        logger = self._context.logger
        try:
            done = compact(folder, poll)
        except (OSError, ParquetError) as error:
            logger.warning("replay_buffer_not_compacted", folder=str(folder), error=str(error))
            return
        if done is not None:
            logger.info(
                "replay_buffer_compacted",
                segments=done.segments,
                bytes_before=done.bytes_before,
                bytes_after=done.bytes_after,
            )

    def _earlier_snapshot(self) -> BufferSnapshot | None:
        """The snapshot that an earlier attempt has written; None if data must be collected.

        If it is missing or damaged, the run's checkpoints were trained on data now unknown. They
        are set aside under another name, with a warning, and the run starts over on new data.

        Raises:
            OSError: The file cannot be read, or not be renamed.
        """
        path = self._context.run_folder / SNAPSHOT_FILE
        try:
            return _read_snapshot(path)
        except FileNotFoundError:
            reason = "the file is missing"
        except ValueError as error:
            reason = f"the file cannot be parsed: {error}"
        useless = (path, self._context.run_folder / "checkpoints")
        ending = f".set-aside-{self._context.attempt}"
        renamed = [str(file.rename(f"{file}{ending}")) for file in useless if file.exists()]
        if renamed:
            self._context.logger.warning(
                "snapshot_lost",
                file=str(path),
                reason=reason,
                set_aside=", ".join(renamed),
                consequence="the run collects new data and starts training over",
            )
        return None

    def _collect(self, buffer: ReplayBuffer) -> None:
        budget = self._context.budget
        deadline = time.monotonic() + budget.seconds
        own_reports = 0
        with closing(self._transitions()) as transitions:
            for recorded, transition in enumerate(transitions, start=1):
                buffer.append(check_type(transition, Transition, "collect() must yield"))
                if self._progress.reports == own_reports:  # the agent itself reports nothing
                    self._progress(recorded, budget.transitions, unit="transitions")
                    own_reports += 1
                self._poll()
                if recorded >= budget.transitions or time.monotonic() >= deadline:
                    break

    def _take_in_decisions(self, folder: Path) -> None:
        """Add what running agents have reported since the last run, each outcome once."""
        for source, log in logs_of(self._context.agent_folder).items():
            self._take_in_log(log, source, folder)

    def _take_in_log(self, log: Path, source: str, folder: Path) -> None:
        logger = self._context.logger
        try:
            report = take_in(log, folder, now=time.time(), source=source)
        except OSError as error:
            consequence = "this run trains without them, a later one takes them in"
            logger.warning("decisions_not_taken_in", error=str(error), consequence=consequence)
            return
        if report.transitions:
            logger.info("decisions_taken_in", transitions=report.transitions)
        for problem in report.skipped[:_MOST_SKIPPED_SHOWN]:
            logger.warning("decision_skipped", reason=problem)

    def _transitions(self) -> Generator[Transition, None, None]:
        """The agent's transitions; its generator is closed when no more are needed."""
        source = self._agent.collect(self._context)
        try:
            yield from source
        finally:
            if hasattr(source, "close"):
                source.close()

    def _log_skipped(self, path: Path, offset: int, reason: str) -> None:
        logger = self._context.logger
        logger.warning("record_skipped", file=str(path), offset=offset, reason=reason)


def _read_snapshot(path: Path) -> BufferSnapshot:
    return BufferSnapshot.from_json(read_json(path, limit=_MOST_SNAPSHOT_BYTES))


def repeated_snapshot(run_folder: Path) -> BufferSnapshot:
    """The snapshot that the finished run in *run_folder* trained on, for a run that repeats it.

    Raises:
        RuntimeError: The snapshot is missing or damaged, so the run cannot be repeated.
    """
    path = run_folder / SNAPSHOT_FILE
    try:
        return _read_snapshot(path)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"this run cannot repeat an earlier one, because {path} cannot be read ({error}); "
            "later runs are not affected"
        ) from error


def check_type(value: object, kind: type[Kind], requirement: str) -> Kind:
    """Return *value*, which plugin code gave, if it is a *kind*.

    The error message begins with the *requirement*, such as ``build_job() must return``.

    Raises:
        TypeError: *value* is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{requirement} {kind.__name__}, got {type(value).__name__}")
    return value
