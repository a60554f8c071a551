import errno

from agents.se_darwin.fork_server.handled_refusals import refusals

PROGRAM = """
def read(error):
    try:
        fail(error)
    except (OSError, RuntimeError):
        return ""
def fail(error):
    raise error
"""
FORBIDDEN = "which the sandbox forbids"


def test_errors_that_the_program_handles_are_seen_with_their_files() -> None:
    namespace: dict[str, object] = {}
    exec(compile(PROGRAM, "<program>", "exec"), namespace)
    read = namespace["read"]
    assert callable(read)
    with refusals() as found:
        read(PermissionError(errno.EACCES, "denied", "rows.json"))
        read(FileNotFoundError(errno.ENOENT, "none", "other.json"))  # not by the sandbox
        read(BlockingIOError(errno.EAGAIN, "no process"))
    read(PermissionError(errno.EACCES, "denied", "late.json"))
    [file, process] = found
    assert file.startswith(f"uses the file rows.json, {FORBIDDEN}")
    assert process == f"starts a process, {FORBIDDEN}"
    assert list(found.values()) == ["rows.json", ""]


def test_the_file_of_an_error_is_known_that_another_one_replaces() -> None:
    namespace: dict[str, object] = {}
    exec(compile(PROGRAM, "<program>", "exec"), namespace)
    read = namespace["read"]
    assert callable(read)
    error = RuntimeError("no configuration")
    error.__cause__ = PermissionError(errno.EACCES, "denied", "rows.toml")
    with refusals() as found:
        read(error)
    assert list(found.values()) == ["rows.toml"]


def test_what_programs_can_do_without_is_not_collected() -> None:
    namespace: dict[str, object] = {}
    exec(compile(PROGRAM, "<program>", "exec"), namespace)
    read = namespace["read"]
    assert callable(read)
    with refusals() as found:
        read(PermissionError(errno.EPERM, "not permitted"))  # of `os.utime`, say
    assert not found


def test_what_a_module_in_a_file_handles_itself_is_not_seen() -> None:
    def read() -> None:
        try:
            raise PermissionError(errno.EACCES, "denied", "rows.json")
        except OSError:
            return

    with refusals() as found:
        read()
    assert not found
