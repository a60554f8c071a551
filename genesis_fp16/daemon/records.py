"""Removal of a group's records, such as a customer's, and the models that have seen them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from genesis_fp16.daemon.prediction import SOCKET_NAME
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.model_versions import ModelVersion, read_versions, version_in_use
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.decisions import Change
from genesis_fp16.system.permissions import private_umask
from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.run_context import ROWS_FOLDER
from infrastructure.decisions.log import logs_of
from infrastructure.decisions.removal import Removal, remove_group
from infrastructure.decisions.spools import RemovedReports, remove_from_spools
from infrastructure.files import JsonFileError, read_json
from infrastructure.trajectories.parquet_segments import ParquetError

_SNAPSHOT, _MOST_SNAPSHOT_BYTES = "snapshot.json", 1 << 26


class RecordsError(GenesisError, OSError):
    """Records could not be removed, or not all of them; the message says what to do."""

    exit_code = os.EX_IOERR


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenBy:
    """A kept version of the model, and whether it was trained on removed records.

    Attributes:
        version: Its id.
        in_use: Whether it answers now.
        transitions: Number of removed transitions in its data; None if that is not known.
    """

    version: str
    in_use: bool
    transitions: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovedRecords:
    """What was removed.

    Attributes:
        agent: Name of the agent.
        records: Number of records of the log of decisions.
        transitions: Number of transitions of the replay buffer.
        caches: Number of folders of encoded rows.
        seen_by: Kept versions that have seen removed records, or may have.
        unfinished: Runs under way, which may have read them before.
        spooled: Reports that waited in clients' spools on this machine.
        predict_servers: Whether there may be records on the disks of predict servers and in the
            bucket, which are not reached.
    """

    agent: str
    records: int
    transitions: int
    caches: int
    seen_by: list[SeenBy]
    unfinished: list[str]
    spooled: RemovedReports
    predict_servers: bool


def delete_group(
    settings: Settings, store: Store, agent: str, group: str, *, actor: str, reason: str
) -> RemovedRecords:
    """Remove all that is recorded of *group* of *agent*; audited by the group's hash.

    The daemon, its runs and the predictor may be at work. An interrupted call is finished by the
    next one.

    Raises:
        RecordsError: A file cannot be read or written.
    """
    home = settings.home.absolute()
    folder = home / "agents" / agent
    digest = hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()
    change = {"group_sha256": digest}
    store.record_change(Change(actor, "records delete", agent, reason, change))
    with private_umask(home):
        try:
            removal = Removal(records=0, transitions={})
            for log in logs_of(folder).values():
                removal += remove_group(log, folder / "replay", group)
            unfinished = [run.id for run in store.unfinished(agent)]
            spooled = remove_from_spools(agent, home / SOCKET_NAME, group, removal.decisions)
            caches = _remove_caches(home, store, agent, unfinished)
            seen_by = _seen_by(home, folder, removal)
        except (OSError, ParquetError, JsonFileError, MisconfiguredError) as error:
            raise RecordsError(f"{error}; then give the same command again") from error
    return RemovedRecords(
        agent=agent,
        records=removal.records,
        transitions=removal.count,
        caches=caches,
        seen_by=seen_by,
        unfinished=unfinished,
        spooled=spooled,
        predict_servers=settings.predict_shared,
    )


def as_json(removed: RemovedRecords) -> dict[str, object]:
    """*removed* as a JSON object."""
    return asdict(removed)


def _seen_by(home: Path, folder: Path, removal: Removal) -> list[SeenBy]:
    if not removal.transitions:
        return []
    versions, seen = read_versions(folder, verify=False), []
    in_use = version_in_use(folder, versions)
    for version in versions:
        lengths = _data_of(home, version.facts)
        count = None if lengths is None else _count_seen(removal, lengths)
        if count != 0:
            seen.append(SeenBy(version=version.id, in_use=version.id == in_use, transitions=count))
    return seen


def _data_of(home: Path, facts: ModelVersion | None) -> Mapping[str, int] | None:
    """Length of each segment that a version was trained on; None if that is not known."""
    if facts is None:
        return None
    if facts.data is not None and facts.data.segments:
        return facts.data.segments
    if facts.run_id is None:
        return None
    try:  # of an earlier release
        path = home / "runs" / facts.run_id / _SNAPSHOT
        read = read_json(path, limit=_MOST_SNAPSHOT_BYTES)
    except (OSError, JsonFileError):
        return None
    return read if isinstance(read, dict) else None


def _count_seen(removal: Removal, lengths: Mapping[str, int]) -> int:
    return sum(
        sum(offset < lengths.get(name, 0) for offset in offsets)
        for name, offsets in removal.transitions.items()
    )


def _remove_caches(home: Path, store: Store, agent: str, unfinished: list[str]) -> int:
    """Remove the encoded rows of the agent's runs that have ended."""
    count = 0
    for rows in (home / "runs").glob(f"*/{ROWS_FOLDER}"):
        run = store.run(rows.parent.name)
        if run is not None and run.agent == agent and run.id not in unfinished:
            shutil.rmtree(rows)
            count += 1
    return count
