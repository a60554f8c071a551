"""The policy in use, as files that transformers reads and nothing unpickles.

``policy.json`` names the folder of the model, with the hash of each file, and is replaced last: a
reader finds the old policy or the new one, never a mixture.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, Field
from safetensors import SafetensorError
from torch.nn import Module
from transformers.utils import logging as transformers_logging

from infrastructure.files import JsonFileError, hash_file, read_model, write_atomically
from infrastructure.policy.models import PolicyModelError, load_policy, vocabulary_size

_INDEX, _PREFIX = "policy.json", "policy-"
_MOST_INDEX_BYTES = 1 << 24


class _Index(BaseModel):
    folder: str = Field(pattern=f"^{_PREFIX}[0-9a-f]{{8}}$")
    sha256: dict[str, str] = Field(min_length=1)  # of each file


class PublishedPolicyError(ValueError):
    """The files of a published policy are damaged or incomplete; names the file."""


def save_published(folder: Path, model: Module, details: Mapping[str, object]) -> None:
    """Replace the policy in *folder* by *model*, a float32 model of transformers.

    Args:
        folder: Created if it is missing.
        details: JSON to keep beside it, such as task and metrics.

    Raises:
        OSError: Writing failed; the previous policy stays in use, and nothing of the new one is
            left.
    """
    previous = _folder_in_use(folder)
    written = folder / f"{_PREFIX}{secrets.token_hex(4)}"
    try:
        with _no_progress_bars():
            model.save_pretrained(written, safe_serialization=True)  # type: ignore[operator]
        index = {"folder": written.name, "sha256": _digests(written), "details": dict(details)}
        write_atomically(folder / _INDEX, json.dumps(index, indent=1))
    except BaseException as error:
        if _folder_in_use(folder) != written.name:
            shutil.rmtree(written, ignore_errors=True)
        if isinstance(error, SafetensorError):  # how it reports a full disk
            raise OSError(f"{written} cannot be written: {error}") from error
        raise
    for version in folder.glob(f"{_PREFIX}*"):
        if version.name not in (written.name, previous):  # a reader may have the previous one open
            shutil.rmtree(version, ignore_errors=True)


def not_in_use(folder: str, names: list[str]) -> list[str]:
    """The *names* in the *folder* of a published policy that are not of the policy in use."""
    if (in_use := _folder_in_use(Path(folder))) is None:
        return []
    return [name for name in names if name not in (_INDEX, in_use)]


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
        digests = _digests(policy_folder)
        for name in sorted(digests.keys() | index.sha256.keys()):
            if digests.get(name) != index.sha256.get(name):
                raise PublishedPolicyError(
                    f"{policy_folder / name}: {_difference(name, digests, index)}"
                )
        with _no_progress_bars():
            model = load_policy(policy_folder, pickles=False)
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


def _difference(name: str, digests: Mapping[str, str], index: _Index) -> str:
    if name not in index.sha256:
        return f"{_INDEX} does not list this file; remove it"
    if name not in digests:
        return f"the file is missing, but {_INDEX} lists it"
    return f"its hash is not that in {_INDEX}"


def _folder_in_use(folder: Path) -> str | None:
    with suppress(PublishedPolicyError):  # there is none, or a damaged one
        return _read_index(folder).folder
    return None


def _read_index(folder: Path) -> _Index:
    try:
        return read_model(folder / _INDEX, _Index, limit=_MOST_INDEX_BYTES)
    except OSError as error:
        raise PublishedPolicyError(f"{folder / _INDEX} cannot be read: {error}") from error
    except JsonFileError as error:
        raise PublishedPolicyError(f"{folder / _INDEX} is damaged: {error.problem}") from error
