"""Static probe: one forward pass in FP32 and in each half type, compared token by token.

`compare` measures; `run` chooses model and sequences and writes the results.
"""

from infrastructure.precision_lab.probe.compare import ProbeError, ProbeResult, ProbeRow, probe
from infrastructure.precision_lab.probe.run import ProbeRequest, half_types, run_probe

__all__ = [
    "ProbeError",
    "ProbeRequest",
    "ProbeResult",
    "ProbeRow",
    "half_types",
    "probe",
    "run_probe",
]
