from dataclasses import replace

from infrastructure.agent_contract.transition import Text
from infrastructure.trajectories.data_checks import checks


def test_noise_has_no_findings(spec, record_noise, check):
    assert check(spec, record_noise()) == []


def test_copies_are_not_taken_for_leaks(spec, record_noise, check):
    """A text of each row tells the outcome of its copy."""
    spec = replace(spec, observation={"text": Text()})
    rows = [
        replace(row, observation={"text": f"row {number}"})
        for number, row in enumerate(record_noise())
    ]
    found = check(spec, rows + [replace(row, group=f"copy of {row.group}") for row in rows])
    assert [finding.kind for finding in found] == ["duplicates"]
    assert str(found[0]) == f"{found[0].problem}; {found[0].remedy}"
    assert found[0].title == "duplicates"


def test_of_many_rows_a_sample_is_checked(spec, record_noise, check, monkeypatch):
    monkeypatch.setattr(checks, "SAMPLED_ROWS", 500)
    rows = [
        replace(row, observation=row.observation | {"load": row.reward})
        for row in record_noise(3000, 10)
    ]
    (found,) = check(spec, rows)
    assert found.title == "leak of reward in observation.load"
