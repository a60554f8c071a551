"""Every parser of what others write: its seeds, how it is called, and how it may refuse."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from genesis_fp16.daemon.backup import BackupError
from genesis_fp16.daemon.backup.backup import MANIFEST, verify
from genesis_fp16.domain.schedule import next_due
from genesis_fp16.predictor.problems import ProblemError
from genesis_fp16.predictor.requests import BODIES, read_body
from genesis_fp16.settings import SettingsError, load_settings
from genesis_fp16.telemetry.log_lines import record_of
from genesis_fp16.worker.preemption import announces_end
from infrastructure.agent_contract import Schedule, Transition
from infrastructure.decisions import records as decision_records
from infrastructure.decisions.dsjson import DsjsonError, read_line
from infrastructure.events import EventTail
from infrastructure.training.checkpoints.checkpoint import (
    CheckpointError,
    manifest_path,
    read_checkpoint,
    write_checkpoint,
)
from infrastructure.trajectories.record import RecordError, decode_record, encode_record
from infrastructure.trajectories.record_source.definition import DefinitionError, parse_definition
from infrastructure.trajectories.record_source.formats import line_decoder
from infrastructure.trajectories.record_source.lines import document_records, split_objects

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))
CPU = torch.device("cpu")
KEYS = SimpleNamespace(group="day", id="id", reward="reward", terminated="done", agent="agent")
TRANSITION = {
    "group": "g",
    "observation": {"x": 1.0, "text": "a b", "list": [1.0, 2.0]},
    "action": {"a": "left"},
    "reward": 0.5,
    "next_observation": {"x": 2.0},
    "terminated": False,
    "propensity": 0.5,
}
DEFINITION = b"""schedule = "cron 30 1 * * * Europe/Helsinki"
[source]
path = "records"
format = "records"
group = "day"
[spec.observation]
degrees = { type = "box" }
[spec.targets]
later = { type = "box" }
"""
EVENTS = [
    {"kind": "started", "time": 1.0, "pid": 7, "device": "cpu"},
    {
        **{"kind": "step_stats", "time": 2.0, "step": 9, "applied": 8, "overflow": 1},
        **{"nonfinite_loss": 0, "no_gradient": 0, "precision": "fp16", "loss": 0.5},
        **{"loss_scale": 65536.0, "grad_norm": 1.0, "seconds": 1.0, "samples": 64},
    },
    {"kind": "notice", "time": 3.0, "event": "x", "level": "info", "fields": {"a": 1}},
    {"kind": "finished", "time": 4.0, "outcome": "done"},
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A parser; *refuses* are the errors by which it may say no."""

    seeds: list[bytes]
    call: Callable[[bytes], Any]
    refuses: tuple[type[Exception], ...]


DSJSON = {
    "_label_cost": -1.0,
    "_label_probability": 0.5,
    "_label_Action": 1,
    "_labelIndex": 0,
    "o": [{"v": 1.0, "EventId": "a"}],
    "Timestamp": "2026-11-25T08:00:00.000000Z",
    "EventId": "a",
    "a": [1, 2],
    "c": {"user": {"age": 3, "tags": ["x", "y"]}, "_multi": [{"action": {"t": 1}}, {"b": True}]},
    "p": [0.5, 0.5],
    "_genesis": {"group": "g", "next_observation": {"x": 1.0}, "rewarded": True},
}


def _log_line(content: bytes) -> None:
    record = record_of(content, Resource({}), InstrumentationScope("fuzz"))
    encode_logs([record]).SerializeToString()


def _dump(*documents: object) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


def _events(content: bytes) -> None:
    path = FOLDER / "events.ndjson"
    path.write_bytes(content + b"\n")
    list(EventTail(path).read())


def _settings(content: bytes) -> None:
    path = FOLDER / ".env"
    path.write_bytes(content)
    load_settings(path, {})


def _schedule(content: bytes) -> None:
    next_due(Schedule.parse(content.decode(errors="replace")), time.time())


def _bodies(content: bytes) -> None:
    for kind in BODIES:
        try:
            read_body(kind, content)
        except ProblemError:
            continue


def _checkpoint(content: bytes) -> None:
    """Both as damaged, and as forged with a manifest that fits."""
    path = FOLDER / "step-0000000001.pt"
    path.write_bytes(content)
    for manifest in (MANIFEST_OF_SEED, _fitting_manifest(content)):
        manifest_path(path).write_text(manifest)
        try:
            read_checkpoint(path, CPU)
        except CheckpointError:
            continue


def _fitting_manifest(content: bytes) -> str:
    from hashlib import sha256

    facts = json.loads(MANIFEST_OF_SEED)
    return json.dumps(facts | {"bytes": len(content), "sha256": sha256(content).hexdigest()})


def _checkpoint_manifest(content: bytes) -> None:
    path = FOLDER / "step-0000000002.pt"
    path.write_bytes(CHECKPOINT)
    manifest_path(path).write_bytes(content)
    read_checkpoint(path, CPU)


def _backup(content: bytes) -> None:
    (FOLDER / MANIFEST).write_bytes(content)
    verify(FOLDER)


def _seed_checkpoint() -> tuple[bytes, str]:
    path = FOLDER / "seed.pt"
    write_checkpoint(path, {"step": 7, "model": {"w": torch.ones(3)}, "names": ["a", "b"]})
    return path.read_bytes(), manifest_path(path).read_text()


CHECKPOINT, MANIFEST_OF_SEED = _seed_checkpoint()
_ITEM = {"observation": {"x": 1.0}, "action": {"a": "left"}}
TARGETS = {
    "events": Target(seeds=_dump(*EVENTS), call=_events, refuses=()),
    "replay": Target(
        seeds=[encode_record(Transition(**TRANSITION))], call=decode_record, refuses=(RecordError,)
    ),
    **{
        f"records: {name}": Target(
            seeds=_dump(TRANSITION, {"day": 1, "id": "a", "metrics": {"loss": 0.5}, "done": True}),
            call=line_decoder(name, KEYS),
            refuses=(ValueError,),
        )
        for name in ("transitions", "records", "casebank", "replay")
    },
    "records: objects in a line": Target(
        seeds=_dump(TRANSITION, [TRANSITION] * 2), call=split_objects, refuses=(ValueError,)
    ),
    "records: a document": Target(
        seeds=_dump([TRANSITION] * 2, {"cases": [TRANSITION]}),
        call=document_records,
        refuses=(ValueError,),
    ),
    "definition": Target(
        seeds=[DEFINITION],
        call=lambda content: parse_definition(content, Path("a.toml")),
        refuses=(DefinitionError,),
    ),
    "decision log": Target(
        seeds=[decision_records.encode_line({"kind": "decision", "id": "a"})],
        call=decision_records.decode_line,
        refuses=(decision_records.DamagedLineError,),
    ),
    "dsjson": Target(seeds=_dump(DSJSON), call=read_line, refuses=(DsjsonError,)),
    "log to export": Target(
        seeds=_dump({"time": 1.5, "event": "run_ended", "run_id": "a", "level": "info", "n": 1}),
        call=_log_line,
        refuses=(),
    ),
    "notice of preemption": Target(
        seeds=[b"FALSE", b'{"action": "stop"}', b'{"Events": [{"EventType": "Preempt"}]}'],
        call=lambda content: announces_end(content.decode(errors="replace")),
        refuses=(),
    ),
    "predictor's bodies": Target(
        seeds=_dump(
            {"items": [_ITEM]},
            {"id": "a", "observation": {"x": 1.0}, "choices": [{"a": "left"}, {"a": "right"}]},
            {"reward": 1.0, "next_observation": {"x": 1.0}},
            {"transitions": [TRANSITION]},
        ),
        call=_bodies,
        refuses=(),
    ),
    "settings": Target(
        seeds=[b"ENABLE_FP16_TRAINING=true\nGENESIS_SLOTS=2 # two\nGENESIS_TIMEZONE='UTC'\n"],
        call=_settings,
        refuses=(SettingsError,),
    ),
    "schedule": Target(
        seeds=[b"every 30m", b"cron 0 3 * * mon", b"cron */7 1-5 1 * * Europe/Helsinki"],
        call=_schedule,
        refuses=(ValueError,),
    ),
    "checkpoint": Target(seeds=[CHECKPOINT], call=_checkpoint, refuses=()),
    "checkpoint's manifest": Target(
        seeds=[MANIFEST_OF_SEED.encode()], call=_checkpoint_manifest, refuses=(CheckpointError,)
    ),
    "backup's manifest": Target(
        seeds=_dump(
            {
                **{"format": 1, "release": "0.2.0", "made_at": 1.0, "runs": 1},
                "database": {"size": 1, "sha256": "0"},
                "files": {"a/b": {"size": 1, "sha256": "0"}},
            }
        ),
        call=_backup,
        refuses=(BackupError,),
    ),
}
