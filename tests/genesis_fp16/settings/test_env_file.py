"""Files as editors and people leave them."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.settings.env_file import MAX_BYTES, Variable, is_ours, read_env_file


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"GENESIS_A=1\r\nGENESIS_B=2\r\n", {"GENESIS_A": ("1", 1), "GENESIS_B": ("2", 2)}),
        (b"\xef\xbb\xbfGENESIS_A=1", {"GENESIS_A": ("1", 1)}),
        (b"\n\n# no\nexport GENESIS_A='x y' # yes\n", {"GENESIS_A": ("x y", 4)}),
        (b"GENESIS_A=1\nGENESIS_A=2\n", {"GENESIS_A": ("2", 2)}),
        (
            b"ENABLE_FP16_TRAINING=1\nENABLE_FP16_TRAINING=off\nENABLE_FP16_TRAINING=true\n",
            {"ENABLE_FP16_TRAINING": ("off", 2)},
        ),
        (b"GENESIS_A=${HOME}\n", {"GENESIS_A": ("${HOME}", 1)}),
        (b"GENESIS_A\n", {"GENESIS_A": ("", 1)}),
        (b"A=1\nPATH=2\n", {}),
    ],
)
def test_variables_and_their_lines(tmp_path: Path, content: bytes, expected: dict) -> None:
    path = tmp_path / ".env"
    path.write_bytes(content)
    problems: list[str] = []
    assert read_env_file(path, problems) == {
        name: Variable(value, f"{path} line {line}") for name, (value, line) in expected.items()
    }
    assert problems == []


def test_a_file_that_is_not_text_is_a_problem(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    huge = tmp_path / "huge"
    huge.write_bytes(b"# x\n" * (MAX_BYTES // 4) + b"\n")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (binary, tmp_path, huge, tmp_path / "fifo", tmp_path / "device"):
        problems: list[str] = []
        assert read_env_file(path, problems) == {}
        assert str(path) in problems[0]


def test_names_of_other_programs_are_ignored() -> None:
    assert is_ours("ENABLE_FP61_TRAINING")
    assert not is_ours("OPENAI_API_KEY")
    assert not is_ours("ENABLE_TELEMETRY")


_PARTS = ["GENESIS_A", "GENESIS_B", "=", "x", "é", " ", "\t", "#", "\n", "\r", "\\", "$", "export "]


@given(st.lists(st.sampled_from([*_PARTS, "GENESIS_A=1\n", "GENESIS_B=2\n", "\x0b"])).map("".join))
def test_lines_without_quotes_mean_the_same_as_beside_a_quoted_one(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, alone, beside = Path(folder) / ".env", list[str](), list[str]()
        path.write_bytes(text.encode())
        variables = read_env_file(path, alone)
        path.write_bytes(f"{text}\nOTHER='quoted'\n".encode())
        assert read_env_file(path, beside) == variables
        assert beside == alone
