"""Which folders may become a home."""

from pathlib import Path

import pytest

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.home import ForeignHomeError, refuse_foreign_folder


def create(folder: Path, *names: str) -> None:
    """Create *names* in *folder*; one that ends with a slash is a folder."""
    folder.mkdir(exist_ok=True)
    for name in names:
        path = folder / name
        path.mkdir() if name.endswith("/") else path.touch()


@pytest.mark.parametrize(
    "names",
    [
        (),
        (".bashrc", ".env", ".cache/", "lost+found/"),
        ("agents/", "profiles/", "rollbacks.json"),
        ("genesis.db", "agents/", "notes.txt"),
        ("daemon.lock", "agents/", "hills/"),
        ("agents.d/", "my-records/"),
    ],
)
def test_a_new_folder_and_a_home_of_before_are_accepted(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    create(tmp_path, *names)
    refuse_foreign_folder(tmp_path)


@pytest.mark.parametrize("names", [("doc.txt",), ("agents/", "runs/", "setup.py")])
def test_a_folder_with_other_things_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    create(tmp_path, *names)
    with pytest.raises(ForeignHomeError, match=names[-1]) as caught:
        refuse_foreign_folder(tmp_path)
    assert caught.value.exit_code == 78
    assert str(tmp_path) in str(caught.value)


def test_no_database_is_created_in_a_foreign_folder(tmp_path: Path) -> None:
    create(tmp_path, "a", "b", "c", "d", "e")
    with pytest.raises(ForeignHomeError, match="contains a, b, c and 2 more"):
        Store.open(Settings(home=tmp_path))
    assert not (tmp_path / "genesis.db").exists()


def test_the_remedy_makes_the_folder_a_home(tmp_path: Path) -> None:
    create(tmp_path, "doc.txt", "daemon.lock")
    Store.open(Settings(home=tmp_path)).close()


def test_what_is_not_a_readable_folder_is_left_to_what_opens_it(tmp_path: Path) -> None:
    create(tmp_path, "file")
    refuse_foreign_folder(tmp_path / "file")
    refuse_foreign_folder(tmp_path / "missing")
