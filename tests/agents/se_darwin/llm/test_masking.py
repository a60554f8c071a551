"""Secrets of a program are marks in what is sent, and themselves in what comes back."""

import time

from agents.se_darwin.llm.masking import Masking


def test_a_dozen_secrets_come_back_each_in_its_own_place() -> None:
    program = "\n".join(f'token_{n} = "secret-{n}-of-{n}"' for n in range(12))
    masking = Masking()
    sent = masking.mask(program)
    assert "secret" not in sent
    assert len(masking) == 12
    assert masking.unmask(sent) == program
    assert masking.unmask('x = "MASKED_99"') == 'x = "MASKED_99"'


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


def test_long_texts_take_no_time() -> None:
    began = time.process_time()
    for text in ("token" * 3000, "token: a[ " * 2000, "token = [" + "'ab', " * 3000, '"""#' * 5000):
        Masking().mask(text)
    assert time.process_time() - began < 5.0
