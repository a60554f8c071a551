"""The mark of hot settings, and what an empty text means."""

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from infrastructure.options.setting_types import (
    AgentNames,
    Count,
    Hot,
    ModuleNames,
    OrEmpty,
    hot_fields,
)


class Example(BaseModel):
    cold: int = 0
    hot: Hot[int] = 0
    optional: Hot[OrEmpty[Count]] = Field(None, validation_alias="OPTIONAL")


def test_hot_is_a_property_of_the_field() -> None:
    assert hot_fields(Example) == ("hot", "optional")


def test_an_empty_text_means_none() -> None:
    assert Example.model_validate({"OPTIONAL": ""}).optional is None
    assert Example.model_validate({"OPTIONAL": "3"}).optional == 3
    with pytest.raises(ValidationError):
        Example.model_validate({"OPTIONAL": "0"})
    with pytest.raises(ValidationError):
        Example.model_validate({"hot": ""})


@pytest.mark.parametrize(
    ("text", "valid"), [("", True), ("a, se-darwin,", True), ("a b", False), ("se_darwin", False)]
)
def test_agent_names_are_separated_by_commas(text: str, valid: bool) -> None:
    adapter = TypeAdapter(AgentNames)
    if valid:
        assert adapter.validate_python(text) == text
    else:
        with pytest.raises(ValidationError, match="commas"):
            adapter.validate_python(text)


@pytest.mark.parametrize(
    ("text", "valid"),
    [("", True), ("encoder.rnn, *.norm,layers.[01]", True), ("a b", False), ("a;b", False)],
)
def test_module_names_are_separated_by_commas(text: str, valid: bool) -> None:
    adapter: TypeAdapter[str] = TypeAdapter(ModuleNames)
    if valid:
        assert adapter.validate_python(text) == text
    else:
        with pytest.raises(ValidationError, match="module name or pattern"):
            adapter.validate_python(text)
