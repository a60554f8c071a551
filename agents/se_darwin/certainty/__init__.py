"""How sure a repair is: other repairs that pass the tests too, and inputs on which they differ."""

from agents.se_darwin.certainty.assessment import Assessment, Assessor
from agents.se_darwin.certainty.verdict import Certainty, describe_certainty

__all__ = ["Assessment", "Assessor", "Certainty", "describe_certainty"]
