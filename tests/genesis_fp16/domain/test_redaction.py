"""What of a setting may be shown."""

import pytest

from genesis_fp16.domain.redaction import is_secret, shown, visible, without_userinfo


def test_the_name_tells_a_secret() -> None:
    assert is_secret("API_Token")
    assert not is_secret("depth")
    assert shown("API_TOKEN", "sekret") == "***"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("deep", "deep"),
        (7, "7"),
        ("[64, 64]", "[64, 64]"),
        ("https://u:sekret@h/", "https://***@h/"),
        ("https://sekret@h/", "https://***@h/"),
        ("https://h/?x=1&api_key=sekret", "https://h/?x=1&api_key=***"),
        ("host=h password = sekret", "host=h password =***"),
        ('{"password": "sekret", "depth": 3}', '{"password": "***", "depth": 3}'),
        ('{"a": [{"b": {"Api_Key": ["sekret"]}}]}', '{"a": [{"b": {"Api_Key": "***"}}]}'),
        ('{"url": "https://u:sekret@h"}', '{"url": "https://***@h"}'),
        ('{"x": "https://u:sekret@h", "x": 1}', '{"x": 1}'),
        ('{"api_key":"sekret"', "***"),
        ("[" * 100_000, "***"),
        ({"password": "sekret"}, '{"password": "***"}'),
    ],
)
def test_a_value_is_shown_without_credentials(value: object, expected: str) -> None:
    assert shown("x", value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:se/k@ret@h/d", "postgresql://***@h/d"),
        ("postgresql:/u:sekret@h/d", "***@h/d"),
        ("u:sekret@h https://x@y", "***@y"),
        ("me@host", "me@host"),
        ("http://h:80/x", "http://h:80/x"),
    ],
)
def test_userinfo_is_hidden(text: str, expected: str) -> None:
    assert without_userinfo(text) == expected


def test_control_characters_are_made_visible() -> None:
    assert visible("a\n\x1b[31m\x9b\u202e\udcff é") == r"a\n\x1b[31m\x9b\u202e\udcff é"
