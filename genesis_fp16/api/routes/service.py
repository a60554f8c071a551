"""The service itself: health, settings, checks, and the audit trail."""

from __future__ import annotations

from fastapi import APIRouter

from genesis_fp16.api import views
from genesis_fp16.api.routes.parameters import CallerHere, Limit, ReadingsHere

router = APIRouter(tags=["service"])


@router.get("/caller")
def show_caller(caller: CallerHere) -> views.CallerView:
    """Who asks, as the audit trail names them, and what a session must send with a change."""
    csrf = None if caller.session is None else caller.session.csrf
    return views.CallerView(actor=caller.actor, csrf=csrf)


@router.get("/health")
def show_health(readings: ReadingsHere) -> views.HealthView:
    """Whether the daemon accepts work, and why not."""
    return readings.health()


@router.get("/settings")
def show_settings(readings: ReadingsHere) -> views.SettingsView:
    """The settings in force, what waits for a restart, and what is wrong; without credentials."""
    return readings.settings_view()


@router.get("/doctor")
def run_doctor(readings: ReadingsHere) -> views.DoctorView:
    """The checks of `genesis-fp16 doctor`; they may take some seconds."""
    return readings.doctor()


@router.get("/audit")
def list_changes(readings: ReadingsHere, limit: Limit = 50) -> list[views.ChangeView]:
    """The newest changes by hand, newest first."""
    return readings.audit(limit)
