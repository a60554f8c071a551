"""A spare worker that imports no torch and becomes the stand-in worker; its arguments, before those
of a spare, say how it behaves. Started by tests in place of `genesis_fp16.worker.spare`."""

import importlib
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from genesis_fp16.worker.spare import main

*how, parent, report = sys.argv[1:]
sys.argv[1:] = [parent, report]


def load() -> Callable[[], None]:
    sys.stdout.write("imported\n")
    sys.stdout.flush()
    if "hang" in how:
        time.sleep(600)
    if "die" in how:
        sys.exit("torch is broken")
    for module in how:
        importlib.import_module(module)
    worker = Path(__file__).with_name("standin_worker.py")
    return lambda: runpy.run_path(str(worker), run_name="__main__")


main(load)
