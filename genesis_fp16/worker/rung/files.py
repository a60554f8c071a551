"""The files by which a training hands its weights and last batches to a search, and the answer.

All lie in ``rung/`` of the run's folder, which is replaced by each search.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import Module

from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.worker.collection import SNAPSHOT_FILE
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import EventTail
from infrastructure.events.event import Finished, RungSearched
from infrastructure.files import json_text, read_json, write_atomically
from infrastructure.precision_lab.rung.request import RungRequest
from infrastructure.training.tensor_files import read_tensors, write_tensors

_FOLDER, _REQUEST, _RESULT, LOG = "rung", "request.json", "result.json", "search.log"
_WEIGHTS, _BATCHES, _REFERENCE = "weights.pt", "batches.pt", "reference.pt"
_MOST_BYTES = 1 << 20  # of a JSON file
_REQUESTS = TypeAdapter(RungRequest)


class RungFolder:
    """The files of the search of the run in *run_folder*."""

    def __init__(self, run_folder: Path) -> None:
        self.path = run_folder / _FOLDER

    @property
    def spec_path(self) -> Path:
        """The specification of the process that searches."""
        return self.path / "attempt" / SPEC_FILE

    def write(
        self,
        spec: RunSpec,
        request: RungRequest,
        model: Module,
        batches: Sequence[Batch],
        reference: Mapping[str, Tensor],
    ) -> None:
        """Freeze weights, those of a *reference* too, and batches; write what the process needs.

        Raises:
            OSError: The disk refuses, or the run's data snapshot cannot be read.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        self.spec_path.parent.mkdir(parents=True)
        write_tensors(self.path / _WEIGHTS, model.state_dict())
        write_tensors(self.path / _BATCHES, [dict(batch) for batch in batches])
        write_tensors(self.path / _REFERENCE, dict(reference))
        write_atomically(self.path / _REQUEST, json_text(asdict(request)))
        shutil.copyfile(spec.run_folder / SNAPSHOT_FILE, self.path / SNAPSHOT_FILE)
        changes = {
            "task": "rung",
            "run_folder": self.path,  # so that nothing of the run is touched
            "attempt_folder": self.spec_path.parent,
            "processes_per_run": 1,
            "rung_search_seconds": 0.0,
        }
        write_atomically(self.spec_path, spec.model_copy(update=changes).model_dump_json())

    def request(self) -> RungRequest:
        """What is to be searched."""
        return _REQUESTS.validate_python(read_json(self.path / _REQUEST, limit=_MOST_BYTES))

    def tensors(self) -> tuple[dict[str, Tensor], list[Batch]]:
        """Weights and batches, on the CPU."""
        return read_tensors(self.path / _WEIGHTS), read_tensors(self.path / _BATCHES)

    def reference(self) -> dict[str, Tensor]:
        """Weights of the reference; empty if there is none."""
        weights: dict[str, Tensor] = read_tensors(self.path / _REFERENCE)
        return weights

    def write_result(self, found: RungSearched) -> None:
        """Write what was found."""
        write_atomically(self.path / _RESULT, found.model_dump_json())

    def result(self) -> RungSearched:
        """What was found.

        Raises:
            OSError, ValueError: There is no result.
        """
        text = json.dumps(read_json(self.path / _RESULT, limit=_MOST_BYTES))
        return RungSearched.model_validate_json(text)

    def failure(self) -> str:
        """Why the process failed, in one line, and the file that says more."""
        log, error = self.path / LOG, ""
        with suppress(OSError):
            for event in EventTail(self.spec_path.with_name("events.ndjson")).read():
                error = event.error if isinstance(event, Finished) else error
        if not error:  # it was killed
            with suppress(OSError):
                error = log.read_text(errors="replace").strip()
            error = error.rpartition("\n")[2]
        line, _, _ = error.partition("\n")
        return f"{line or 'no output'} (see {log})"

    def drop_tensors(self) -> None:
        """Free the disk; the request, the result and the log stay."""
        for name in (_WEIGHTS, _BATCHES, _REFERENCE):
            (self.path / name).unlink(missing_ok=True)
