"""Parameters that several endpoints share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from genesis_fp16.api.access import Caller, caller_of
from genesis_fp16.api.readings import Readings
from genesis_fp16.daemon.operator import find_run
from genesis_fp16.domain.reason import LONGEST_REASON, ReasonMissingError, one_line
from genesis_fp16.runs.run_folder import RUN_ID, RUN_NUMBER
from infrastructure.agent_contract.agent import AGENT_NAME


def readings_of(request: Request) -> Readings:
    """What the application of *request* reads from.

    Raises:
        StoreError: The database was moved or replaced since it was opened.
    """
    readings = request.app.state.readings
    assert isinstance(readings, Readings)  # noqa: S101  # set by make_app
    readings.store.verify()
    return readings


ReadingsHere: TypeAlias = Annotated[Readings, Depends(readings_of)]
CallerHere: TypeAlias = Annotated[Caller, Depends(caller_of)]
AgentName: TypeAlias = Annotated[
    str, Path(pattern=f"^{AGENT_NAME.pattern}$", description="Name of an agent.")
]
RUN_NAME = f"^({RUN_ID.pattern}|{RUN_NUMBER.pattern})$"
_RUN = "Id of a run, or its number: AGENT#3, or #3 if one agent alone has it. Write # as %23."


def run_id_of(
    readings: ReadingsHere, run_id: Annotated[str, Path(pattern=RUN_NAME, description=_RUN)]
) -> str:
    """Id of the run that a path names by id or number.

    Raises:
        UnknownNameError: The number is not that of one run.
    """
    is_id = RUN_ID.fullmatch(run_id) is not None
    return run_id if is_id else find_run(readings.store, run_id).id


RunId: TypeAlias = Annotated[str, Depends(run_id_of)]
Limit: TypeAlias = Annotated[int, Query(ge=1, le=500, description="Most entries to return.")]


def _not_blank(reason: str) -> str:
    try:
        one_line(reason)
    except ReasonMissingError as error:
        raise PydanticCustomError("reason_missing", "{error}", {"error": str(error)}) from error
    return reason


Reason: TypeAlias = Annotated[
    str,
    Field(
        max_length=LONGEST_REASON,
        description="Why; recorded in the audit trail.",
        json_schema_extra={"minLength": 1, "pattern": r"[^\s\u0000-\u001f\u007f-\u009f\u00ad]"},
    ),
    AfterValidator(_not_blank),
]


class Change(BaseModel):
    """A change that the audit trail explains."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason


class Cleared(BaseModel):
    """Whether something was in force that has ended now."""

    cleared: bool
