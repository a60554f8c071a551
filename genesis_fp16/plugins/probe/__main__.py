"""Child process that loads one agent, reads what is installed, or asks torch about the hardware.

It answers in JSON on its own file descriptor, and faulthandler has another, because a plugin may
print any amount. The daemon never imports
plugin code: an agent that raises, exits, crashes or hangs here ends only this process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import sys
import traceback
from pathlib import Path

from pydantic import JsonValue

from genesis_fp16.plugins.loading import (
    PluginRefusedError,
    load_agent,
    one_line,
    plugin_code,
    validate_settings,
)
from genesis_fp16.plugins.probe.messages import ProbeAnswer, ProbeRequest
from genesis_fp16.plugins.scan import scan_installed
from infrastructure.agent_contract import Schedule
from infrastructure.events.plain_text import LONGEST


def probe_agent(entry_point: str, name: str, request: ProbeRequest) -> ProbeAnswer:
    """Load the agent, ask for its schedule and check its settings; never raises."""
    try:
        agent = load_agent(entry_point, name, request.root, request.definition)
        with plugin_code("schedule() failed"):
            schedule = agent.schedule()
        if not isinstance(schedule, Schedule):
            raise PluginRefusedError(f"schedule() returned {schedule!r}, not a Schedule")
        settings = validate_settings(agent, request.settings)
        with plugin_code("the JSON schema of the settings cannot be made"):
            schema = None if settings is None else type(settings).model_json_schema()
        return ProbeAnswer(schedule=schedule, settings_schema=schema)
    except PluginRefusedError as error:
        trace = "".join(traceback.format_exception(error))
        return ProbeAnswer(reason=one_line(str(error)), detail=trace[-LONGEST:])


def describe_hardware(device_name: str) -> dict[str, JsonValue]:
    """Import torch and describe *device_name*; see `genesis_fp16.plugins.probe.Hardware`.

    Raises:
        ValueError: There is no such device.
    """
    try:
        import torch
    except Exception as error:  # also what torch imports by the metadata of others
        what = f"{type(error).__name__}: {error}"
        sys.exit(f"torch cannot be imported ({one_line(what)}); see genesis-fp16 doctor")

    from infrastructure.training.precision import native_half_types, resolve_device

    device = resolve_device(device_name)
    return {"device": str(device), "torch_version": torch.__version__, **native_half_types(device)}


def main() -> None:
    """Answer on the given descriptor, then exit without waiting for a plugin's threads."""
    parser = argparse.ArgumentParser(
        prog="python -m genesis_fp16.plugins.probe", description=__doc__
    )
    parser.add_argument("entry_point", nargs="?", help="module:attribute of an agent's factory")
    parser.add_argument("--name", help="name of the entry point")
    parser.add_argument("--hardware", action="store_true", help="ask torch about the device")
    parser.add_argument("--scan", type=Path, metavar="HOME", help="read what is installed")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--answer", type=int, default=1, help="descriptor to answer on")
    parser.add_argument("--trace", type=int, default=2, help="descriptor for tracebacks")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds to live")
    options = parser.parse_args()
    gc.disable()  # searching what torch's import makes takes a sixth of a probe
    # Ends this process with every thread's traceback, even if the parent is gone.
    faulthandler.enable(options.trace)
    faulthandler.dump_traceback_later(options.deadline, exit=True, file=options.trace)
    if options.hardware:
        try:
            answer = json.dumps(describe_hardware(options.device))
        except ValueError as error:  # no such device: the message names the remedy
            sys.exit(f"{error}")
    elif options.scan:
        answer = scan_installed(options.scan).model_dump_json()
    elif options.entry_point and options.name:
        request = ProbeRequest.model_validate_json(sys.stdin.read() or "{}")
        answer = probe_agent(options.entry_point, options.name, request).model_dump_json()
    else:
        parser.error("give module:attribute with --name, --hardware or --scan")
    with os.fdopen(options.answer, "w", closefd=False) as channel:
        channel.write(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
