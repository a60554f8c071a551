import subprocess
import sys

WITHOUT_FILES = """
import sys, zoneinfo
from agents.se_darwin.fork_server.time_zones import keep_time_zones
keep_time_zones()
def refuse(event, arguments):
    if event == "open":
        raise PermissionError(str(arguments[0]))
sys.addaudithook(refuse)
print(zoneinfo.ZoneInfo("Europe/Berlin"))
try:
    zoneinfo.ZoneInfo("Europe/Nowhere")
except zoneinfo.ZoneInfoNotFoundError as error:
    print(error)
"""


def test_time_zones_are_found_where_no_file_can_be_opened() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        "Europe/Berlin",
        "'No time zone found with key Europe/Nowhere'",
    ]
