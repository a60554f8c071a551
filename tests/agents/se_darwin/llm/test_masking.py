"""Secrets of a program are marks in what is sent, and themselves in what comes back."""

from agents.se_darwin.llm.masking import Masking


def test_a_dozen_secrets_come_back_each_in_its_own_place() -> None:
    program = "\n".join(f'token_{n} = "secret-{n}-of-{n}"' for n in range(12))
    masking = Masking()
    sent = masking.mask(program)
    assert "secret" not in sent
    assert len(masking) == 12
    assert masking.unmask(sent) == program
    assert masking.unmask('x = "MASKED_99"') == 'x = "MASKED_99"'
