"""The policy in use, as files that transformers reads and nothing unpickles.

``policy.json`` names the folder of the model, with the hash of each file, and is replaced last: a
reader finds the old policy or the new one, never a mixture. Of a policy with an adapter, that
folder holds the adapter alone, in peft's format; ``policy.json`` names the one of its base as well.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from pydantic import BaseModel, Field
from safetensors import SafetensorError
from torch.nn import Module
from transformers.utils import logging as transformers_logging

from infrastructure.files import (
    JsonFileError,
    hash_bytes,
    hash_file,
    read_model,
    write_atomically,
)
from infrastructure.policy.adapters import adapter_rank, base_of, load_adapter
from infrastructure.policy.models import PolicyModelError, load_policy, vocabulary_size
from infrastructure.training.precision.frozen_base import FrozenBase

_INDEX, _PREFIX, _BASE = "policy.json", "policy-", "base-"
_MOST_INDEX_BYTES = 1 << 24


class _Base(BaseModel):
    folder: str = Field(pattern=f"^{_BASE}[0-9a-f]{{8}}$")
    sha256: dict[str, str] = Field(min_length=1)  # of each file


class _Index(BaseModel):
    folder: str = Field(pattern=f"^{_PREFIX}[0-9a-f]{{8}}$")
    sha256: dict[str, str] = Field(min_length=1)  # of each file
    base: _Base | None = None

    @property
    def folders(self) -> set[str]:
        return {self.folder} if self.base is None else {self.folder, self.base.folder}


class PublishedPolicyError(ValueError):
    """The files of a published policy are damaged or incomplete; names the file."""


def save_published(folder: Path, model: Module, details: Mapping[str, object]) -> None:
    """Replace the policy in *folder* by *model*, a model of transformers.

    It is float32, or has an adapter over a frozen base.

    Args:
        folder: Created if it is missing.
        details: JSON to keep beside it, such as task and metrics.

    Raises:
        OSError: Writing failed; the previous policy stays in use, and nothing of the new one is
            left.
    """
    previous = _folders_in_use(folder)
    written = folder / f"{_PREFIX}{secrets.token_hex(4)}"
    base = _base_folder(folder, model) if adapter_rank(model) else None
    kept = {written.name} | ({base.name} if base else set())
    try:
        with _no_progress_bars():
            if base is not None and not _is_base_in_use(base):
                shutil.rmtree(base, ignore_errors=True)  # damaged, or left by a killed process
                _save(base_of(model).to(_base_type(model)), base)
            _save(model, written)
        index = {"folder": written.name, "sha256": _digests(written), "details": dict(details)}
        if base is not None:
            index["base"] = {"folder": base.name, "sha256": _digests(base)}
        write_atomically(folder / _INDEX, json.dumps(index, indent=1))
    except BaseException as error:
        for name in kept - _folders_in_use(folder):
            shutil.rmtree(folder / name, ignore_errors=True)
        if isinstance(error, SafetensorError):  # how it reports a full disk
            raise OSError(f"{written} cannot be written: {error}") from error
        raise
    for version in (*folder.glob(f"{_PREFIX}*"), *folder.glob(f"{_BASE}*")):
        if version.name not in kept | previous:  # a reader may have the previous one open
            shutil.rmtree(version, ignore_errors=True)


def not_in_use(folder: str, names: list[str]) -> list[str]:
    """The *names* in the *folder* of a published policy that are not of the policy in use."""
    if not (in_use := _folders_in_use(Path(folder))):
        return []
    return [name for name in names if name not in in_use | {_INDEX}]


def has_published(folder: Path) -> bool:
    """Whether a policy was published in *folder*, readable or not."""
    return (folder / _INDEX).exists()


def load_published(folder: Path, vocabulary: int) -> Module | None:
    """The policy in *folder*, in float32 on the CPU; None if there is none.

    Args:
        vocabulary: Number of ids of the task's tokenizer.

    Raises:
        PublishedPolicyError: A file is missing, damaged, not listed in ``policy.json``, or of
            another model or tokenizer.
    """
    if not has_published(folder):
        return None
    index = _read_index(folder)
    policy_folder = folder / index.folder
    try:
        _check_files(policy_folder, index.sha256)
        with _no_progress_bars():
            if index.base is None:
                model = load_policy(policy_folder, pickles=False)
            else:
                _check_files(folder / index.base.folder, index.base.sha256)
                model = load_policy(folder / index.base.folder, pickles=False)
                load_adapter(model, policy_folder)
        if (rows := vocabulary_size(model)) != vocabulary:
            raise PublishedPolicyError(
                f"{policy_folder} predicts {rows} ids, but the tokenizer has {vocabulary}: "
                "it was made by another version of the task"
            )
        return model
    except (OSError, PolicyModelError) as error:
        raise PublishedPolicyError(f"{folder}: {error}") from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep the bars of transformers out of the worker's log."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hash_file(path).sha256 for path in sorted(folder.iterdir())}


def _check_files(folder: Path, sha256: Mapping[str, str]) -> None:
    """Compare the files of *folder* with their hashes in the index.

    Raises:
        PublishedPolicyError: A file is missing, damaged or not listed.
        OSError: The folder cannot be read.
    """
    digests = _digests(folder)
    for name in sorted(digests.keys() | sha256.keys()):
        if digests.get(name) != sha256.get(name):
            raise PublishedPolicyError(f"{folder / name}: {_difference(name, digests, sha256)}")


def _difference(name: str, digests: Mapping[str, str], sha256: Mapping[str, str]) -> str:
    if name not in sha256:
        return f"{_INDEX} does not list this file; remove it"
    if name not in digests:
        return f"the file is missing, but {_INDEX} lists it"
    return f"its hash is not that in {_INDEX}"


def _save(model: Module, folder: Path) -> None:
    model.save_pretrained(folder, safe_serialization=True)  # type: ignore[operator]


def _base_folder(folder: Path, model: Module) -> Path:
    """Folder of the frozen base of *model*, named by a hash of its weights."""
    _, hashes = FrozenBase(model).leave_out(model.state_dict())
    content = json.dumps(hashes, sort_keys=True).encode()
    return folder / f"{_BASE}{hash_bytes(content).sha256[:8]}"


def _is_base_in_use(base: Path) -> bool:
    """Whether the policy in use has *base*, undamaged."""
    with suppress(PublishedPolicyError, OSError):
        in_use = _read_index(base.parent).base
        return in_use == _Base(folder=base.name, sha256=_digests(base))
    return False


def _base_type(model: Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if not p.requires_grad)


def _folders_in_use(folder: Path) -> set[str]:
    with suppress(PublishedPolicyError):  # there is none, or a damaged one
        return _read_index(folder).folders
    return set()


def _read_index(folder: Path) -> _Index:
    try:
        return read_model(folder / _INDEX, _Index, limit=_MOST_INDEX_BYTES)
    except OSError as error:
        raise PublishedPolicyError(f"{folder / _INDEX} cannot be read: {error}") from error
    except JsonFileError as error:
        raise PublishedPolicyError(f"{folder / _INDEX} is damaged: {error.problem}") from error
