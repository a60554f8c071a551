"""Clones of public repositories, from which the programs of the sources are read."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Clones:
    """Bare clones in a folder; missing ones are fetched.

    Args:
        folder: Folder of clones: ``owner+name`` or ``owner+name/repo`` each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._readers: dict[str, subprocess.Popen[bytes]] = {}

    def git(self, repository: str, *arguments: str) -> bytes:
        """Return what a git command prints.

        Raises:
            ValueError: It failed; the message has its reason.
        """
        command = ["git", f"--git-dir={self._directory(repository)}", *arguments]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise ValueError(f"{repository}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def blob(self, repository: str, commit: str, path: str) -> bytes:
        """Return a file at *commit*.

        Raises:
            ValueError: There is none.
        """
        reader = self._readers.get(repository)
        if reader is None:
            command = ["git", f"--git-dir={self._directory(repository)}", "cat-file", "--batch"]
            reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._readers[repository] = reader
        if reader.stdin is None or reader.stdout is None:
            raise ValueError(f"{repository}: git does not answer")
        reader.stdin.write(f"{commit}:{path}\n".encode())
        reader.stdin.flush()
        header = reader.stdout.readline().split()
        if len(header) != 3:
            raise ValueError(f"{repository} has no {path} at {commit}")
        return reader.stdout.read(int(header[2]) + 1)[:-1]

    def close(self) -> None:
        """End the readers."""
        for reader in self._readers.values():
            reader.communicate()
        self._readers.clear()

    def text(self, repository: str, commit: str, path: str) -> str:
        """Return a text file at *commit*."""
        return self.blob(repository, commit, path).decode()

    def _directory(self, repository: str) -> Path:
        name = "+".join(repository.rstrip("/").split("/")[-2:])
        clone = self.folder / name
        for directory in (clone / "repo", clone):
            if (directory / "HEAD").is_file():
                return directory
        clone.parent.mkdir(parents=True, exist_ok=True)
        command = ["git", "clone", "--quiet", "--bare", repository, str(clone)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise ValueError(f"{repository} could not be cloned to {clone}: {reason}")
        return clone
