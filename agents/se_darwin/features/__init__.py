"""What the world model sees of a program under repair and of a step that changes it."""

from agents.se_darwin.features.step_features import (
    NUMBERS,
    OUTCOMES,
    SPEC,
    Fields,
    Step,
    StepFeatures,
    observe,
)

__all__ = ["NUMBERS", "OUTCOMES", "SPEC", "Fields", "Step", "StepFeatures", "observe"]
