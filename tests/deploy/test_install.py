"""`make install` itself, on this machine's own files as a mount namespace shows them.

What it writes goes to layers above /etc, /opt, /usr/local and /var/lib that end with the test. The
one stand-in is the Python that builds a release: it puts this checkout where pip would have.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LAYERED = ("/etc", "/opt", "/usr/local", "/var/lib")
UNIT = "/etc/systemd/system/genesis-fp16.service"
COMMAND = "/usr/local/bin/genesis-fp16"
CURRENT = "/opt/genesis-fp16/current"
ENV = "/etc/genesis-fp16/.env"
SOURCE, VENV, BASE = "/srv", "/mnt", "/media"  # this checkout and its Python, for any user
LIBRARIES = f"{SOURCE}:{VENV}/{Path(sysconfig.get_path('purelib')).relative_to(sys.prefix)}"
RUN = f"PYTHONPATH={LIBRARIES} exec {BASE}/bin/{Path(sys.executable).resolve().name}"
CALL = "from genesis_fp16.cli import main; main()"  # as the console script
PYTHON = f"""\
#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\n{RUN} -c "{CALL}" "$@"\\n' >"$3/bin/genesis-fp16"
    chmod +x "$3/bin/genesis-fp16" ;;
"-m pip") [ -z "$PIP" ] || exec sh -c "$PIP" ;;
*) {RUN} "$@" ;;
esac
"""


class Host:
    """This machine, with layers of its own above what the installation writes to."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir()
        for path in ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"):
            for program in Path(path).iterdir():
                if not (self.tools / program.name).is_symlink():
                    (self.tools / program.name).symlink_to(program)
        self.without("python-for-releases")
        (self.tools / "python-for-releases").write_text(PYTHON)
        (self.tools / "python-for-releases").chmod(0o755)
        seen = {root: SOURCE, sys.prefix: VENV, sys.base_prefix: BASE}
        mounts = [f"mount --bind {there} {here}" for there, here in seen.items()]
        for path in LAYERED:
            upper, work = (folder / kind / path[1:] for kind in ("upper", "work"))
            upper.mkdir(parents=True)
            work.mkdir(parents=True)
            layers = f"lowerdir={path},upperdir={upper},workdir={work}"
            mounts.append(f"mount -t overlay overlay -o {layers} {path}")
        self._enter = " && ".join([*mounts, f"cd {SOURCE}", 'exec "$@"'])

    def without(self, *tools: str) -> None:
        """Take programs off the PATH."""
        for tool in tools:
            (self.tools / tool).unlink(missing_ok=True)

    def start(self, *command: str, **environ: str) -> subprocess.Popen[str]:
        given = {"PATH": str(self.tools), "PYTHON": "python-for-releases", "HOME": "/root"}
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", self._enter, "sh", *command],
            env=given | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, **environ: str) -> tuple[int, str]:
        """Exit code, and all that was said."""
        process = self.start(*command, **environ)
        said, _ = process.communicate(timeout=300)
        return process.returncode, said

    def install(self, **environ: str) -> tuple[int, str]:
        return self.run("deploy/systemd/install.sh", **environ)

    def written(self, path: str) -> Path:
        return self.folder / "upper" / path[1:]

    def state(self) -> dict[str, str]:
        """What is installed, path to content or target; of releases their names."""
        files = {}
        for path in (self.folder / "upper").rglob("*"):
            name = str(path.relative_to(self.folder / "upper"))
            _, releases, inside = name.partition("/releases/")
            if path.is_symlink():
                files[name] = str(path.readlink())
            elif releases and path.is_dir() and "/" not in inside:
                files[name] = "a release"
            elif path.is_file() and not releases and path.parent.name != "etc":
                files[name] = path.read_text()
        return {name: what for name, what in files.items() if not name.endswith("/.lock")}


def _host(folder: Path, root: Path) -> Host:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, and unshare of util-linux")
    host = Host(folder, root)
    if "mount:" in (said := host.run("true")[1]):
        pytest.skip(f"needs to mount layers: {said}")
    return host


@pytest.fixture
def host(tmp_path: Path, root: Path) -> Host:
    return _host(tmp_path, root)


@pytest.fixture(scope="module")
def first_installation(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """What the first installation writes."""
    host = _host(tmp_path_factory.mktemp("first"), root)
    code, said = host.install()
    assert code == 0, said
    return host.folder / "upper"


@pytest.fixture
def installed(host: Host, first_installation: Path) -> Host:
    """A host that has it."""
    subprocess.run(["cp", "-a", f"{first_installation}/.", host.folder / "upper"], check=True)
    return host


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def _mark_unit(host: Host) -> None:
    """Make what is installed differ from what would be."""
    for path in (UNIT, COMMAND):
        with host.written(path).open("a") as file:
            file.write("# of the release before\n")


def test_installed_it_works_and_a_second_time_too(installed: Host, root: Path) -> None:
    unit = root / "deploy/systemd/genesis-fp16.service"
    assert installed.written(UNIT).read_text() == unit.read_text()
    code, said = installed.run("genesis-fp16", "--version", PATH=f"/usr/local/bin:{os.defpath}")
    assert (code, said[:13]) == (0, "genesis-fp16 ")
    first = installed.written(CURRENT).readlink()
    with installed.written(ENV).open("a") as file:
        file.write("GENESIS_SLOTS=2\n")
    code, said = installed.install()
    assert code == 0, said
    second = installed.written(CURRENT).readlink()
    assert first != second
    releases = installed.written("/opt/genesis-fp16/releases")
    assert {path.name for path in releases.iterdir()} == {first.name, second.name}
    assert "GENESIS_SLOTS=2" in installed.written(ENV).read_text()
    assert (installed.written(str(second)) / "systemd/genesis-fp16.service").is_file()
    assert not [name for name in installed.state() if name.endswith((".new", ".old"))]


@pytest.mark.parametrize("tool", ["systemctl", "useradd", "setpriv", "python-for-releases"])
def test_without_a_tool_it_says_so_and_changes_nothing(host: Host, tool: str) -> None:
    host.without(tool)
    code, said = host.install()
    assert code == 1
    assert f"needs {tool}" in said
    assert host.state() == {}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ({"settings": "GENESIS_GUARD_METRIC_DRIFT=inf\n"}, "GENESIS_GUARD_METRIC_DRIFT=inf"),
        ({"PIP": "echo no space left on device; exit 1"}, "no space left"),
        ({"without": "install"}, "needs install"),
        ({"directory": f"{UNIT}.new"}, "genesis-fp16.service.new"),
        ({"directory": f"{COMMAND}.old"}, "genesis-fp16.old"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_upgrade_that_fails_leaves_the_release_before(
    installed: Host, spoil: dict[str, str], told: str
) -> None:
    _mark_unit(installed)
    if "settings" in spoil:
        installed.written(ENV).write_text(spoil["settings"])
    if "directory" in spoil:  # stands in the way of a file to be written
        (installed.written(spoil["directory"]) / "full").mkdir(parents=True)
    if "without" in spoil:
        installed.without(spoil["without"])
    before = installed.state()
    code, said = installed.install(**{name: spoil[name] for name in ("PIP",) if name in spoil})
    assert code != 0
    assert told in said
    assert installed.state() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_the_release_before(installed: Host, number: signal.Signals) -> None:
    _mark_unit(installed)
    before = installed.state()
    going = installed.folder / "going"
    process = installed.start("deploy/systemd/install.sh", PIP=f"touch {going}; sleep 60")
    _wait_for(going)
    os.killpg(process.pid, number)  # as a terminal does
    said, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "still in use" in said
    assert installed.state() == before


def test_interrupted_between_two_renamings_it_puts_all_back(installed: Host) -> None:
    _mark_unit(installed)
    before = installed.state()
    real = (installed.tools / "mv").readlink()
    installed.without("mv")
    (installed.tools / "mv").write_text(
        f'#!/bin/sh\n{real} "$@"; case $3 in {COMMAND}) kill -INT $PPID; esac\n'
    )
    (installed.tools / "mv").chmod(0o755)
    code, said = installed.install()
    assert code == 128 + signal.SIGINT, said
    assert installed.state() == before


def test_two_at_once_do_not_mix(installed: Host) -> None:
    before = installed.state()
    code, said = installed.run("flock", "/opt/genesis-fp16/.lock", "deploy/systemd/install.sh")
    assert (code, "another install.sh" in said) == (1, True), said
    assert installed.state() == before


def test_a_gpu_is_let_in_where_asked(installed: Host, root: Path) -> None:
    code, said = installed.install(DEVICE="cuda")
    assert code == 0, said
    drop_in = installed.written(f"{UNIT}.d/gpu.conf")
    assert drop_in.read_text() == (root / "deploy/systemd/gpu.conf").read_text()
