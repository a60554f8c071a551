"""A sandbox that runs each program once and caches its results on disk.

The result of a program on given tests does not depend on the policy that chose it. So every policy
can be replayed exactly, and a second run of the benchmark executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from agents.se_darwin.sandbox import Execution, Limits, Output, PytestSuite, Sandbox, TestCase

_BATCH = 400


class CachingSandbox(Sandbox):
    """Executes programs whose results are not cached.

    Args:
        path: SQLite file of the cache; created if missing.
        modules: See `Sandbox`.
        limits: See `Sandbox`.
        parallel: See `Sandbox`.

    Attributes:
        executed: Number of programs that were executed.

    Raises:
        SandboxUnavailableError: See `Sandbox`.
    """

    def __init__(
        self, path: Path, *, modules: Sequence[str], limits: Limits, parallel: int
    ) -> None:
        self.executed = 0
        self._digests: dict[int, tuple[object, bytes]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS runs (key BLOB PRIMARY KEY, did BLOB) WITHOUT ROWID"
        )
        super().__init__(modules=modules, limits=limits, parallel=parallel)

    def run(
        self,
        sources: Sequence[str],
        tests: Sequence[TestCase] | PytestSuite,
        *,
        function: str,
        module: str | None = None,
        coverage: bool = False,
        limits: Limits | None = None,
    ) -> list[Execution]:
        """See `Sandbox.run`; cached programs are not run again."""
        key_prefix = repr((sys.version, function, module, coverage, limits or self.limits)).encode()
        key_prefix += self._digest(tests)
        keys = [hashlib.sha256(key_prefix + source.encode()).digest()[:16] for source in sources]
        known = {key: found for key in keys if (found := self._find(key)) is not None}
        missing = dict.fromkeys(
            (key, source) for key, source in zip(keys, sources, strict=True) if key not in known
        )
        todo = list(missing)
        for start in range(0, len(todo), _BATCH):
            batch = todo[start : start + _BATCH]
            executions = super().run(
                [source for _, source in batch],
                tests,
                function=function,
                module=module,
                coverage=coverage,
                limits=limits,
            )
            fresh = {key: execution for (key, _), execution in zip(batch, executions, strict=True)}
            self._store(fresh)
            self.executed += len(batch)
            known |= fresh
        return [known[key] for key in keys]

    def screen(
        self,
        sources: Sequence[str],
        tests: Sequence[TestCase] | PytestSuite,
        *,
        function: str,
        module: str | None = None,
        limits: Limits | None = None,
    ) -> list[Execution]:
        """Do what `run` does: the cache holds results of programs in processes of their own."""
        return self.run(sources, tests, function=function, module=module, limits=limits)

    def close(self) -> None:
        """See `Sandbox.close`."""
        super().close()
        self._database.close()

    def _digest(self, tests: Sequence[TestCase] | PytestSuite) -> bytes:
        if id(tests) not in self._digests:  # keep the tests, so that their id is not reused
            self._digests[id(tests)] = (tests, hashlib.sha256(repr(tests).encode()).digest())
        return self._digests[id(tests)][1]

    def _find(self, key: bytes) -> Execution | None:
        row = self._database.execute("SELECT did FROM runs WHERE key = ?", (key,)).fetchone()
        return None if row is None else _read(row[0])

    def _store(self, executions: dict[bytes, Execution]) -> None:
        rows = [(key, _write(execution)) for key, execution in executions.items()]
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?)", rows)
        self._database.execute("COMMIT")


def _write(execution: Execution) -> bytes:
    outputs = [
        output and (output.kind, output.text, output.arguments, sorted(output.lines))
        for output in execution.outputs
    ]
    record = (execution.end, round(execution.cpu_seconds, 6), outputs)
    return zlib.compress(json.dumps(record, separators=(",", ":")).encode())


def _read(data: bytes) -> Execution:
    end, cpu_seconds, outputs = json.loads(zlib.decompress(data))
    return Execution(
        outputs=tuple(
            output
            and Output(
                kind=output[0], text=output[1], arguments=output[2], lines=frozenset(output[3])
            )
            for output in outputs
        ),
        end=end,
        cpu_seconds=cpu_seconds,
    )
