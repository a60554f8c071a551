"""The dispatcher, the active attempt, the schedule, paired FP32 runs and retention."""
