"""``manifest.json`` of a frozen experiment: what it is, where it comes from, and its files.

Imports no torch, so that a command can read it before it decides where to compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError

from infrastructure.events import Role
from infrastructure.events.plain_text import plain
from infrastructure.events.precision_state import RoleTypes
from infrastructure.files import FileHash, JsonFileError, first_problem, read_json
from infrastructure.precision_lab.errors import LabError

MANIFEST = "manifest.json"
FORMAT = 1
_MOST_BYTES = 16 << 20

FileName: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^(weights|batches|data)/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,100}$")
]
_Hash: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FrozenError(LabError):
    """A frozen folder cannot be written or used.

    Args:
        path: File or folder.
        problem: What is wrong with it, and the remedy.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyDetails(_Strict):
    """What rebuilds the models of a policy, and how its completions were drawn.

    Attributes:
        architecture: Configuration of the language model, as transformers writes it.
        temperature, pad_token, stop_tokens, kl_coefficient, value_coefficient, clip: See
            `PolicyTraining`.
    """

    architecture: dict[str, JsonValue]
    temperature: float = Field(ge=0.01, le=1e6)
    pad_token: int = Field(ge=0)
    stop_tokens: tuple[int, ...] = Field(min_length=1, max_length=1024)
    kl_coefficient: float = Field(ge=0)
    value_coefficient: float = Field(ge=0)
    clip: float = Field(gt=0, lt=1)


class AgentSource(_Strict):
    """The agent whose job is repeated: its code builds the model and computes the loss.

    Attributes:
        name: Name of the agent.
        seed: Seed of the run that built the job.
        settings_sha256: Hash of the agent's own settings, which may be secret.
        transitions: Length of each file in ``data/``; see `BufferSnapshot`.
        keep_fp32: Modules that the job keeps in FP32.
    """

    name: str
    seed: int
    settings_sha256: _Hash
    transitions: dict[str, int]
    keep_fp32: tuple[str, ...] = ()


class Manifest(_Strict):
    """Content of ``manifest.json``.

    Attributes:
        format: Version of the folder's layout.
        kind: ``policy`` or ``world-model``.
        created: Moment of the freeze, ISO 8601 in UTC.
        source: Where model and data come from: agent, task, folder of a model, file.
        seed: Seed of everything drawn in the freeze.
        environment: Device, versions, threads, attention kernel, determinism.
        precision: Types in which each role computed in the freeze.
        dtypes: Types of the tensors in each file.
        weights: File of each role's weights.
        batches: Files of the batches, in order.
        files: Every file of the folder.
        policy: Only of a policy.
        agent: Only of a world model.
    """

    format: Literal[1]
    kind: Literal["policy", "world-model"]
    created: str
    source: dict[str, str | int | None]
    seed: int
    environment: dict[str, JsonValue]
    precision: dict[Role, RoleTypes]
    dtypes: dict[FileName, dict[str, str]]
    weights: dict[Role, FileName] = Field(min_length=1)
    batches: tuple[FileName, ...] = Field(min_length=1)
    files: dict[FileName, FileHash]
    policy: PolicyDetails | None = None
    agent: AgentSource | None = None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of *folder*.

    Raises:
        FrozenError: It is missing, unreadable, not JSON, of a newer version, or not complete.
    """
    path = folder / MANIFEST
    try:
        content = read_json(path, limit=_MOST_BYTES)
    except FileNotFoundError:
        remedy = "freeze one with genesis-fp16 lab freeze"
        raise FrozenError(folder, f"holds no frozen experiment (no {MANIFEST}): {remedy}") from None
    except OSError as error:
        raise FrozenError(path, f"cannot be read: {error.strerror}") from error
    except JsonFileError as error:
        raise FrozenError(path, f"{plain(error.problem, 120)}: freeze again") from None
    _check_version(path, content)
    try:
        manifest = Manifest.model_validate(content)
    except (ValidationError, RecursionError) as error:
        raise FrozenError(path, f"is not a manifest: {_first_problem(error)}") from None
    _check_references(path, manifest)
    return manifest


def _check_version(path: Path, content: object) -> None:
    version = content.get("format") if isinstance(content, Mapping) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise FrozenError(path, "is not a manifest: it has no format number; freeze again")
    if version != FORMAT:
        remedy = "use the version of genesis-fp16 that froze it, or freeze again"
        raise FrozenError(path, f"has format {version}, this version reads {FORMAT}: {remedy}")


def _check_references(path: Path, manifest: Manifest) -> None:
    named = [*manifest.weights.values(), *manifest.batches]
    missing = sorted({name for name in named if name not in manifest.files})
    if missing:
        raise FrozenError(path, f"names {missing[0]} but has no hash of it: freeze again")
    if len(set(manifest.batches)) < len(manifest.batches):
        raise FrozenError(path, "names a batch twice: freeze again")
    details = manifest.policy if manifest.kind == "policy" else manifest.agent
    if details is None:
        raise FrozenError(path, f"has no details of a {manifest.kind}: freeze again")


def _first_problem(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return plain(first_problem(error), 300)
