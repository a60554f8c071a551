"""Reports of the precision lab."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from genesis_fp16.api import views
from genesis_fp16.api.problems import RefusalError
from genesis_fp16.api.readings import Readings, lab_reports
from genesis_fp16.api.routes.parameters import ReadingsHere

# A report may style itself and has its figures inside; it runs no script and loads nothing.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'"
)
_Name = Annotated[
    str, Path(pattern=f"^{lab_reports.NAME.pattern}$", description="Name of a report.")
]

router = APIRouter(tags=["lab"])


@router.get("/reports")
def list_reports(readings: ReadingsHere) -> list[views.LabReportView]:
    """The reports of the precision lab in the home, newest first."""
    reports = lab_reports.find(readings.home)
    return [views.LabReportView.model_validate(report) for report in reports]


@router.get(
    "/reports/{name}",
    response_class=Response,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
def show_report(name: _Name, readings: ReadingsHere) -> Response:
    """One report, a page without scripts, as the lab wrote it."""
    return lab_report(readings, name)


def lab_report(readings: Readings, name: str) -> Response:
    """The report as a response that lets it load and run nothing.

    Raises:
        RefusalError: No report has that name.
    """
    content = lab_reports.read(readings.home, name)
    if content is None:
        raise RefusalError(404, "no report of that name is in the home: see /reports")
    headers = {"Content-Security-Policy": _POLICY}
    return Response(content, media_type="text/html", headers=headers)
