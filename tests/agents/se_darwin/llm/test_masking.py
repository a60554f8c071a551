"""Secrets of a program are marks in what is sent, and themselves in what comes back."""

import time

import pytest

from agents.se_darwin.llm.masking import Masking


def test_a_dozen_secrets_come_back_each_in_its_own_place() -> None:
    program = "\n".join(f'token_{n} = "secret-{n}-of-{n}"' for n in range(12))
    masking = Masking()
    sent = masking.mask(program)
    assert "secret" not in sent
    assert len(masking) == 12
    assert masking.unmask(sent) == program
    assert masking.unmask('x = "MASKED_0"') == 'x = "MASKED_0"'
    assert masking.unmask('"MASKED_3_5"') == '"secret-2-of-25"'


def test_a_secret_is_a_whole_word_and_never_part_of_code() -> None:
    program = 'password_a = "hunter"\n'
    program += "".join(f'password_{n} = "secret-x{n}z"\n' for n in range(12))
    program += 'name = "hunter0"\nlog = "to hunter: secret-x8z"\nhunter = 1  # not for hunter\n'
    masking = Masking()
    sent = masking.mask(program)
    assert masking.unmask(sent) == program
    assert 'name = "hunter0"' in sent
    assert "hunter = 1" in sent
    assert sent.count("hunter") == 2
    assert "secret" not in sent
    assert "hunter" not in masking.mask(r"- got 'a\nhunter and hunter'")
    assert "secret" not in masking.mask("Sent: secret-x8z.")
    nested = 'token = "https://user:hunter2x@host/path"'
    assert masking.unmask(masking.mask(nested)) == nested
    for code in (
        'token = "return"\ndef count():\n    return count',
        "password = MASK\ndef count_letters(text):\n    letters = 0\n    return letters",
        'pwd = MASK\nprint(f"{len(letters)} of {letters}")',
        "secret = MASK\ndef letters2(x):\n    return x.letters or count_letters(x)",
    ):
        sent = Masking().mask(code.replace("MASK", '"letters"'))
        assert sent == code.replace("MASK", '"MASKED_1_"')


PROGRAM = '''
"""password: hidden-01"""
db_pwd = "hidden-02"
auth = {"user": "bob", "password": "hidden-03", "pin": "hidden-04"}
conf = dict(passwd='hid"den-05', user="bob")
SECRET = ("hidden-06"
          "hidden-07")
TOKEN = """hidden-08"""
KEY = b"hidden-09"
TOKENS = ["hidden-10", "hidden-11"]
def solve(n: int, token: str | None = "hidden-12"):
    """Shell:

    export DB_PASSWORD=hidden-13
    """
    # api_key = hidden-14
    os.environ.setdefault("SECRET_KEY", "hidden-15")
    token = tokens[0] + f"{n}-token"
    return read(key="name", password=password)
'''


def test_secrets_are_found_by_their_names_wherever_they_stand() -> None:
    masking = Masking()
    sent = masking.mask(f"{PROGRAM}\n- test_a: got 'hidden-10 and more'")

    assert "hidden" not in sent
    assert "den-05" not in sent
    assert len(masking) == 15
    assert masking.unmask(sent).startswith(PROGRAM)
    for kept in ('"user": "bob"', 'token = tokens[0] + f"{n}-token"', 'key="name"'):
        assert kept in sent


@pytest.mark.parametrize(
    "line",
    [
        'password = os.environ.get("DB_PASSWORD", "hunter2!x")',
        'headers = {"X-Api-Key": "hunter2!x"}',
        'headers = {"Authorization": "Basic hunter2!x"}',
        'url = "https://hooks.slack.com/services/T00000000/B00000000/hunter2xABCD1234"',
        'key = "SG.hunter2xABCD1234.ABCDEF1234567890abcdefgh"',
        'dsn = "AccountKey=hunter2xABCD1234ABCD==;EndpointSuffix=core"',
        'PASSWORD = """\nhunter2!x\n"""',
        'access_key = "hunter2!x"',
        'pw = "hunter2!x"',
        'auth = ("root", "hunter2!x")',
        'if password == "hunter2!x": pass',
        'if "hunter2!x" == user.password: pass',
        'if config["password"] != "hunter2!x": pass',
        'assert check_password("hunter2!x")',
        'set_password(user, "hunter2!x")',
        'dsn = "Server=db;Uid=sa;Pwd=hunter2!x;"',
        'dsn = "host=db password=hunter2!x"',
        'url = "https://h/x?api_key=hunter2!x&y=1"',
        'url = "redis://:hunter2!x@db"',
        'url = "redis://root:a/hunter2!x@db"',
        'PASSWORDS = {"root": "hunter2!x", "bob": "hunter2!y"}',
        'self.secret = self.x = "hunter2!x"',
        'bot = "1234567890:hunter2x_H1vGWJxfSeofSAs0K5PALDsaw"',
        "# password: hunter2!x",
        'PASSWORD = "hunter2" "hunter2!x"',
        'PASSWORD = "a\\"hunter2!x"',
        'passwd = "multi" \\\n    "hunter2!x"',
        'os.environ.setdefault("DB_PASS", "hunter2!x")',
        'my_pass = "hunter2!x"',
        'pw_hash = "hunter2!x"',
        'otp = "hunter2!x"',
        'credit_card = "hunter2!x"',
    ],
)
def test_secrets_of_many_forms_are_masked(line: str) -> None:
    masking = Masking()
    sent = masking.mask(line)
    assert "hunter2" not in sent
    assert masking.unmask(sent) == line


def test_numbers_behind_names_and_uuids_are_masked() -> None:
    numbers = 'pin = 48151\ndb_password: int = 48152\nd = {"token": 48153}\nf(secret=48154)'
    uuid = 'x = "48155000-e29b-41d4-a716-446655440000"'
    masking = Masking()
    sent = masking.mask(f"{numbers}\n{uuid}\nmax_tokens = 4096; spin = 12; n = 48156")
    assert sent.count("4815") == 1
    assert len(masking) == 5
    again = "if 48_157 != pin or pin == 48_157: pass\nx = 4815; y = 481511"
    assert masking.mask(again).count("48") == 2
    assert masking.unmask(masking.mask(again)) == again
    assert "max_tokens = 4096" in sent
    for line in ("pin_code = 7788", "secret_number = -778899", "secret_hex = 0x7788BEEF"):
        assert "7788" not in Masking().mask(line)
    masking.mask("secret = 778899")
    assert masking.mask("limit = 778899") == "limit = 778899"
    assert masking.unmask(sent).startswith(f"{numbers}\n{uuid}")


@pytest.mark.parametrize(
    "line",
    [
        'if token == "while": pass',
        "pin = 1024; token = 5000; max_token = 4096; api_key: int = 2_000",
        "GPIO_PIN: int = 1013; token_count = 1234; credit_card_fee = 2501",
        "password_min_length = 1023; PASSWORD_TTL = 86399; secret_hex_width = 0x10001",
        'pass_rate = "high"; boarding_pass = "B-1234"',
        'cook({"salt": "1 tsp"}, recipe("salt", "pepper"))',
        'try: x()\nexcept: pass\ny = "bypass: compass"',
        'read("password=:password", password=password)',
        'url = f"https://h/x?token={token}"',
        'print("no password, no secret: none")',
        'if password == "": raise ValueError("the password is empty")',
    ],
)
def test_what_only_names_a_secret_is_sent(line: str) -> None:
    assert Masking().mask(line) == line


def test_long_texts_take_no_time() -> None:
    began = time.process_time()
    for text in (
        "token" * 3000,
        "token: a[ " * 2000,
        "token = [" + "'ab', " * 3000,
        '"""#' * 5000,
        "secret(a." * 2000,
        "-secret" * 3000,
        "pin" * 5000,
    ):
        Masking().mask(text)
    assert time.process_time() - began < 5.0
