"""Private folders in a real sandbox: bounded, empty at first, and with no way out."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import pytest

from agents.se_darwin.fork_server.private_folder import MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_BYTES
from agents.se_darwin.sandbox import Execution, Limits, Sandbox, TestCase

LIMITS = Limits(cpu_seconds=5.0, wall_seconds=20.0)
CASE = TestCase.returning((0,), 0)


@pytest.fixture(scope="module")
def files() -> Iterator[Sandbox]:
    with Sandbox(files=True) as sandbox:
        if sandbox.layers["files"] != "on":
            pytest.skip(f"this host has no private folders: {sandbox.layers['files']}")
        yield sandbox


def outcomes(executions: list[Execution]) -> list[str]:
    found = [execution.outputs[0] for execution in executions]
    return [output.text if output else "none" for output in found]


def program(body: str) -> str:
    lines = dedent(body).strip().splitlines()
    return "\n".join(["import os", "def solve(x):", *(f"    {line}" for line in lines)])


def test_each_candidate_begins_with_an_empty_folder(files: Sandbox) -> None:
    source = program(
        """
        found = os.listdir()
        os.makedirs("a/b")
        os.symlink("/etc", "a/link")
        with open("a/b/c", "w") as file:
            file.write("x")
        os.rename("a/b/c", "c")
        os.chdir("a")
        return len(found)
        """
    )
    sources = [source] * 12
    assert outcomes(files.run(sources, [CASE], function="solve")) == ["0"] * 12
    assert outcomes(files.screen(sources, [CASE], function="solve")) == ["0"] * 12
    assert files.restarts == 0


def test_a_folder_is_bounded(files: Sandbox) -> None:
    source = program(
        f"""
        sizes, names = [], 0
        for name in ("a", "b", "c"):
            with open(name, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(65536))
                except OSError:
                    sizes.append(file.tell())
        for name in "abc":
            os.unlink(name)
        try:
            while True:
                os.mkdir(str(names))
                names += 1
        except OSError:
            pass
        assert max(sizes) == {MAX_FILE_BYTES}
        assert sum(sizes) <= {MAX_FOLDER_BYTES}
        assert names < {MAX_FILES}
        return 0
        """
    )
    found = files.run([source] * 2, [CASE], function="solve", limits=LIMITS)
    assert outcomes(found) == ["0", "0"]


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd')",
        "os.symlink('/etc/passwd', 'link'), open('link')",
        "os.symlink('/', 'root'), os.listdir('root/etc')",
        "os.symlink('..', 'up'), open('up/written', 'w')",
        "os.link('/etc/passwd', 'hard')",
        "os.mkdir('../other')",
        "os.listdir('..')",
        "os.listdir('/proc')",
        "open('/dev/null', 'w')",
        "os.mkfifo('pipe')",
        "os.mknod('device', 0o20600, os.makedev(1, 3))",
        "__import__('socket').socket()",
        "__import__('socket').socketpair()",
        "os.memfd_create('shared')",
        "os.fork()",
        "[os.open('.', os.O_RDONLY) for _ in range(99)]",
    ],
)
def test_no_other_path_can_be_used(files: Sandbox, attempt: str) -> None:
    source = program(f"{attempt}\nreturn 0")
    [execution] = files.run([source], [CASE], function="solve")
    output = execution.outputs[0]
    assert output is not None
    assert output.kind == "raise"
    assert output.text in ("OSError", "PermissionError", "FileNotFoundError", "BlockingIOError")


def test_a_folder_that_cannot_be_emptied_is_given_to_nobody(files: Sandbox) -> None:
    locks = program("os.mkdir('locked', 0)\nreturn 0")
    looks = program("return len(os.listdir())")
    before = files.restarts
    found = outcomes(files.run([locks, looks, locks, looks], [CASE], function="solve"))
    assert found[1::2] == ["0", "0"]
    assert files.restarts > before


def test_files_can_be_copied_and_moved(files: Sandbox) -> None:
    source = program(
        """
        import shutil
        os.makedirs("a/b")
        with open("a/b/c", "w") as file:
            file.write("x")
        shutil.copy("a/b/c", "d")
        shutil.copy2("d", "e")
        shutil.copytree("a", "f")
        shutil.move("f/b", "g")
        return "".join(open(name).read() for name in ("d", "e", "g/c")).count("x") - 3
        """
    )
    assert outcomes(files.run([source], [CASE], function="solve")) == ["0"]


def test_without_it_no_file_can_be_opened(sandbox: Sandbox) -> None:
    assert sandbox.layers["files"] == "not asked for"
    sources = [program(f"open('{name}', 'w')\nreturn 0") for name in ("x", "/tmp/x")]
    assert outcomes(sandbox.run(sources, [CASE], function="solve")) == ["OSError", "OSError"]
