"""Pure data and rules of runs, attempts, precision and the guard: no I/O, no clock."""

from genesis_fp16.system.own_distribution import require_own_library

require_own_library()
