"""What attaching to a checkout writes, and how it is taken back."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings.env_file import ROLLBACK_FLAG
from genesis_fp16.settings.settings import variable_name
from genesis_fp16.settings.source import ATTACHED_VARIABLE
from genesis_fp16.system.permissions import private_umask
from infrastructure.files import JsonFileError, read_model, write_atomically, write_model

SETTINGS_FILE = "genesis-fp16.env"  # in the checkout, beside Genesis' own .env
MANIFEST_FILE = "attached.json"  # in the home
_MOST_MANIFEST_BYTES = 1 << 20


class AttachError(GenesisError, ValueError):
    """Nothing could be attached or detached; the message says why, and what to do."""

    exit_code = os.EX_DATAERR


class Manifest(BaseModel):
    """What `write` has written, so that `take_back` removes it.

    Attributes:
        checkout: The checkout.
        files: Absolute path of each file to the SHA-256 of its content.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    checkout: Path
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A checkout and the home that learns from it.

    Attributes:
        checkout: Root of the checkout.
        settings: Settings file of ours.
        home: Home of the daemon.
        records: Folder to which Genesis' processes write records.
        group: Group that may write there and ask on the socket; empty for our user alone.
    """

    checkout: Path
    settings: Path
    home: Path
    records: Path
    group: str = ""

    def settings_text(self) -> str:
        """Content of the settings file."""
        return (
            "# Written by genesis-fp16 attach; genesis-fp16 detach removes it if unchanged.\n"
            f"{ROLLBACK_FLAG}=true\n"
            f"GENESIS_HOME={_quoted(self.home)}\n"
            f"{ATTACHED_VARIABLE}={_quoted(self.checkout / '.env')}\n"
            + (f"{variable_name('predict_group')}={self.group}\n" if self.group else "")
        )

    def write(self, definitions: Mapping[Path, str]) -> tuple[list[Path], list[Path]]:
        """Write settings and *definitions*; return the new files, and those left as they are.

        Raises:
            AttachError: Something cannot be written, or the home belongs to another checkout.
        """
        earlier = self._manifest()
        written: list[Path] = []
        kept: list[Path] = []
        files = dict(earlier.files)
        try:
            with private_umask(self.home):
                self.home.mkdir(parents=True, exist_ok=True)
                self._open_folders()
                for path, text in {self.settings: self.settings_text(), **definitions}.items():
                    if path.exists():
                        kept.append(path)
                        continue
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, text)
                    files[str(path)] = _hash(path)
                    written.append(path)
                    self._note(files)  # at once: a later file may fail
                self._note(files)
        except OSError as error:
            raise AttachError(
                f"{error.filename or self.home} cannot be written: {error.strerror}; give this "
                "user the right, or name other places by --home, --settings and --records"
            ) from error
        return written, kept

    def take_back(self) -> tuple[list[Path], list[Path]]:
        """Remove what `write` wrote; return what is removed, and what was changed since and stays.

        Raises:
            AttachError: Nothing is attached, or a file cannot be removed.
        """
        manifest = self._manifest()
        if not (self.home / MANIFEST_FILE).exists():
            raise AttachError(
                f"{self.home} is not attached to {self.checkout}; nothing was removed"
            )
        removed: list[Path] = []
        changed: list[Path] = []
        try:
            for path, content in ((Path(name), digest) for name, digest in manifest.files.items()):
                if not path.exists():
                    continue
                (removed if _hash(path) == content else changed).append(path)
            for path in removed:
                path.unlink()
            (self.home / MANIFEST_FILE).unlink()
        except OSError as error:
            raise AttachError(
                f"{error.filename} cannot be removed: {error.strerror}; give this user the right"
            ) from error
        return removed, changed

    def _manifest(self) -> Manifest:
        path = self.home / MANIFEST_FILE
        try:
            manifest = read_model(path, Manifest, limit=_MOST_MANIFEST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return Manifest(checkout=self.checkout, files={})
        except (OSError, JsonFileError) as error:
            raise AttachError(f"{path} cannot be read: {error}; restore or delete it") from error
        if manifest.checkout != self.checkout:
            raise AttachError(
                f"{self.home} is attached to {manifest.checkout}: a home serves one checkout; name "
                "another one by --home"
            )
        return manifest

    def _note(self, files: dict[str, str]) -> None:
        manifest = Manifest(checkout=self.checkout, files=files)
        write_model(self.home / MANIFEST_FILE, manifest, indent=2)

    def _open_folders(self) -> None:
        """Make the folder of records; the group may write there, and enter the home."""
        self.records.mkdir(parents=True, exist_ok=True)
        if not self.group:
            return
        if self.records.is_relative_to(self.home):
            raise AttachError(
                f"{self.records} is below {self.home}, which only its owner may enter: name a "
                "folder outside by --records, for example /var/lib/genesis-records"
            )
        for folder, mode in ((self.records, 0o2770), (self.home, 0o710)):
            try:
                shutil.chown(folder, group=self.group)
            except LookupError:
                raise AttachError(
                    f"the group {self.group!r} does not exist: create it first"
                ) from None
            folder.chmod(mode)


def _quoted(path: Path) -> str:
    """The path as a value of the settings file."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
