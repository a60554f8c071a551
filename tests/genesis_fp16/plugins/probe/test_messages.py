import pytest
from pydantic import ValidationError

from genesis_fp16.plugins.probe.messages import ProbeAnswer, ProbeRequest
from infrastructure.agent_contract import Schedule


def test_an_answer_survives_the_way_as_json() -> None:
    answer = ProbeAnswer(schedule=Schedule.parse("every 1h"), settings_schema={"type": "object"})
    assert ProbeAnswer.model_validate_json(answer.model_dump_json()) == answer


def test_a_request_has_no_fields_of_others() -> None:
    with pytest.raises(ValidationError, match="extra"):
        ProbeRequest.model_validate({"settings": {}, "environment": {}})
