"""Pure data and rules of runs, attempts, precision and the guard: no I/O, no clock."""
