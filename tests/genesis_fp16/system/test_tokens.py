"""Tokens of a setting and of a file: names, roles, expiry, changes."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.system.tokens import TokenFileError, Tokens, read_tokens

TOKEN = "0123456789abcdef"
NEW_YEAR_2027 = 1_798_761_600.0


def test_tokens_of_a_file_are_named_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# who may\nann {TOKEN}-ann\n\n{TOKEN}-any\n")
    tokens = Tokens(f"{TOKEN}-own", path)
    assert [token.name for token in tokens.in_force()] == ["token", "ann", "token"]
    token = tokens.find(f"{TOKEN}-ann")
    assert token is not None
    assert token.name == "ann"
    assert tokens.find(TOKEN) is None
    path.write_text(f"bob {TOKEN}-bob-new\n")
    assert tokens.find(f"{TOKEN}-ann") is None, "a token that was taken away opens nothing"
    assert tokens.find(f"{TOKEN}-bob-new") is not None
    path.unlink()
    with capture_logs() as logs:
        assert tokens.find(f"{TOKEN}-bob-new") is None
    assert logs[0]["event"] == "api_tokens_unreadable"


def test_changes_of_the_file_are_told_to_who_asks_for_them(tmp_path: Path) -> None:
    path, told = tmp_path / "tokens", list[dict[str, str]]()
    path.write_text(f"ann {TOKEN}-ann\n")
    tokens = Tokens(None, path, notice=lambda event, **fields: told.append({event: str(fields)}))
    path.write_text(f"ann {TOKEN}-ann\nbob {TOKEN}-bob\n")
    with capture_logs() as logs:
        tokens.in_force()
        path.unlink()
        tokens.in_force()
    assert [list(each) for each in told] == [["api_tokens_read"], ["api_tokens_unreadable"]]
    assert told[0]["api_tokens_read"] == "{'names': 'ann, bob'}"
    assert not logs


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "has no token"),
        ("# none\n", "has no token"),
        ("short\n", "line 1: the token (only word)"),
        (f"a b {TOKEN}\n", "the token (second word) must have 16 to 512"),
        (f"#\nann {TOKEN}é\n", "line 2: the token (second word)"),
        (f"{TOKEN}{TOKEN}{TOKEN} ask\n", "the name (first word)"),
        (f"ann {TOKEN} rule\n", "the role (third word) must be one of read, ask, operate"),
        (f"ann {TOKEN} read 2027-13-01\n", "the date (fourth word)"),
        (f"ann {TOKEN} read 2027-12-01 x\n", "it has 5 words"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_without_showing_one(
    tmp_path: Path, text: str, part: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(TokenFileError) as refused:
        read_tokens(path)
    assert str(path) in str(refused.value)
    assert part in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_token_has_a_role_and_may_end(tmp_path: Path) -> None:
    path, now = tmp_path / "tokens", [NEW_YEAR_2027 - 1]
    path.write_text(f"ann {TOKEN}-ann read\nbob {TOKEN}-bob ask 2027-01-01\ncleo {TOKEN}-cleo\n")
    tokens = Tokens(None, path, clock=lambda: now[0])
    roles = {token.name: token.role for token in tokens.in_force()}
    assert roles == {"ann": "read", "bob": "ask", "cleo": "operate"}
    now[0] = NEW_YEAR_2027
    assert tokens.find(f"{TOKEN}-bob") is None
    assert tokens.find(f"{TOKEN}-ann") is not None
